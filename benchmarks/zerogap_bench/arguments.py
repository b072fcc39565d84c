"""The arguments of ``zerogap bench``."""

from __future__ import annotations

import argparse
from pathlib import Path

from zerogap_bench.options import DEFAULT_MODEL
from zerogap_bench.peers import PEER_NAMES
from zerogap_bench.shapes import RunShape
from zerogap_bench.suite import QUESTIONS, SUITES

EXAMPLES = f"""questions:
  rollout    groups of answers: tokens/s, share of the machine's limit, and alternatives
  single     one sequence, as a share of memory bandwidth
  step       a whole GRPO step, and TRL's
  scaling    the cost of a generated token by number of sequences and context length
  numerics   "exact" against "fast", and bf16 against fp32
  limit      this machine's GEMM, multiply-adds and memory

suites:
  cpu        all questions (about half an hour on 2 cores, most of it for alternatives)
  check      ratios and shares in a few minutes, compared with this processor's baseline; exit code 1 if one is worse than
             its tolerance

Alternatives take part if they are installed ({", ".join(PEER_NAMES)}); the tables say how to get the others.
Ctrl-C stops and shows what was measured.

examples:
  zerogap bench rollout --shapes 8x8x64 --repeats 1 --peers none
  zerogap bench single
  zerogap bench rollout --vllm-python ~/venvs/vllm/bin/python --json rollout.json
  zerogap bench step --profile --peers none
  zerogap bench --suite cpu --json suite.json
  zerogap bench --suite check --record     from a clean checkout
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options. Options of a single question default to None."""
    parser.add_argument("question", nargs="?", choices=QUESTIONS, metavar="QUESTION", help=f"one of {', '.join(QUESTIONS)}")  # fmt: skip
    add = parser.add_argument
    add("--suite", choices=SUITES, help="several questions instead of one")
    add(
        "--model",
        default=DEFAULT_MODEL,
        help="any model that zerogap loads (SmolLM2-135M-Instruct)",
    )
    add("--threads", type=_count, help="threads of every side (torch's default)")
    add("--repeats", type=_count, help="runs of each side (3; single 5, numerics 4)")
    add("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    _add_generation(parser.add_argument_group("rollout, single, step, numerics"))
    _add_step(parser.add_argument_group("step"))
    _add_scaling(parser.add_argument_group("scaling"))
    group = parser.add_argument_group("limit")
    group.add_argument("--rows", type=_counts, help="rows of the GEMMs (8,64,256,1024)")
    group = parser.add_argument_group("suites")
    group.add_argument("--record", action="store_true", default=None, help="write the result as this processor's baseline; needs a clean checkout")  # fmt: skip
    group.add_argument("--baselines", type=Path, metavar="FOLDER", help="folder of baselines (benchmarks/baselines)")  # fmt: skip


def _add_generation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--shapes", type=_shapes, help="prompts x answers x new tokens, comma-separated (8x8x64,32x8x64; step 8x8x64; single 1x1x64)")  # fmt: skip
    add(
        "--peers",
        type=_peers,
        help=f"alternatives among {','.join(PEER_NAMES)}, or none (all that are installed)",
    )
    add("--vllm-python", type=Path, metavar="PYTHON", help="Python of the environment that has vLLM")  # fmt: skip
    add("--all-peers", action="store_true", default=None, help="run alternatives at every shape, however long it takes (up to 64 sequences)")  # fmt: skip
    add("--profile", action="store_true", default=None, help="an additional run under the profiler")  # fmt: skip


def _add_step(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--peer-repeats", type=_count, help="steps of TRL, which take minutes each (1)")
    add("--trl-micro-batch", type=_count, help="sequences in one forward pass of TRL (8)")
    add("--micro-batch-tokens", type=_count, help="zerogap's train.micro_batch_tokens (1024)")
    add("--recompute", action="store_true", default=None, help="zerogap's train.recompute")


def _add_scaling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--sequences", type=_counts, help="numbers of sequences decoded together (8,64,256)")
    add("--contexts", type=_counts, help="prompt lengths in tokens (128,1024,4096)")
    add("--group-size", type=_count, help="sequences that share a prompt (8)")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        msg = f"{text!r} is not a positive whole number; give 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def _shapes(text: str) -> tuple[RunShape, ...]:
    return tuple(RunShape.parse_list(text))


def _peers(text: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    names = tuple(text.split(","))
    for name in names:
        if name not in PEER_NAMES:
            msg = f"{name!r} is not a known alternative; give some of {', '.join(PEER_NAMES)}, separated by commas, or none"
            raise argparse.ArgumentTypeError(msg)
    return names
