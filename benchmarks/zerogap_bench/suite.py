"""Runs one question, or a suite of several, with one preparation."""

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zerogap_bench.generation import Generation
from zerogap_bench.grpo_step import GrpoStep
from zerogap_bench.limit import MachineLimit
from zerogap_bench.machine import describe_machine
from zerogap_bench.numerics import Numerics
from zerogap_bench.options import BenchOptions
from zerogap_bench.peers import Choice
from zerogap_bench.prepare import Prepared, prepare
from zerogap_bench.question import Question, Setting
from zerogap_bench.scaling import Scaling
from zerogap_bench.shapes import RunShape
from zerogap_bench.tables import Table

QUESTIONS = ("rollout", "single", "step", "scaling", "numerics", "limit")
SUITES = ("cpu", "check")

_SINGLE, _SMALL, _LARGE = RunShape(1, 1, 64), RunShape(8, 8, 64), RunShape(32, 8, 64)
_CHECK_SINGLE, _CHECK_SMALL = RunShape(1, 1, 32), RunShape(8, 8, 16)


class Benchmark:
    """Measures some questions one after the other. Its results can be shown at any time."""

    def __init__(self, name: str, questions: Sequence[Question], options: BenchOptions) -> None:
        self.name = name
        self._questions, self._options = questions, options
        self._prepared: Prepared | None = None

    def measure(self, say: Callable[[str], None]) -> None:
        """Prepare, then measure every question.

        Args:
            say: shows a line of progress.

        Raises:
            ZerogapError: the model cannot be loaded, or zerogap's side failed. A failed peer is a note below the tables.
        """
        options, choice = self._options, _choice(self._options)
        asks_rollouts = any(isinstance(question, Generation) for question in self._questions)
        with TemporaryDirectory(prefix="zerogap-bench-") as folder:
            say("preparing the model")
            self._prepared = prepare(
                options.model,
                Path(folder),
                num_prompts=max(question.num_prompts for question in self._questions),
                threads=options.threads,
                with_gguf=asks_rollouts and choice.takes("llama.cpp"),
            )
            say(self._prepared.describe())
            for question in self._questions:
                question.measure(Setting(self._prepared, Path(folder), say))

    def tables(self) -> list[Table]:
        """The results so far, as tables."""
        return [table for question in self._questions for table in question.tables()]

    @property
    def failures(self) -> list[str]:
        """Sides that failed."""
        return [failure for question in self._questions for failure in question.failures]

    def report(self) -> dict[str, Any]:
        """The results so far, with configuration, machine, versions and commit."""
        return {
            "benchmark": self.name,
            **{question.name: question.report() for question in self._questions},
            "kernels": self._prepared.kernels if self._prepared else None,
            "threads": self._prepared.threads if self._prepared else None,
            "config": _plain(self._options),
            "date": date.today().isoformat(),
            **describe_machine(),
        }


def build_benchmark(name: str, options: BenchOptions) -> Benchmark:
    """The benchmark of a question or suite; ``name`` is one of QUESTIONS or SUITES."""
    return Benchmark(name, _questions(name, options), options)


def _questions(name: str, o: BenchOptions) -> list[Question]:
    choice = _choice(o)

    def generation(*shapes: RunShape, repeats: int = 3, asked: Choice = choice) -> Generation:
        return Generation(
            o.shapes or shapes, repeats=o.repeats or repeats, choice=asked, all_peers=o.all_peers, profile=o.profile
        )  # fmt: skip

    def step(*shapes: RunShape, asked: Choice = choice) -> GrpoStep:
        return GrpoStep(
            o.shapes or shapes, repeats=o.repeats or 3, choice=asked, trl_repeats=o.peer_repeats,
            trl_micro_batch=o.trl_micro_batch, micro_batch_tokens=o.micro_batch_tokens, recompute=o.recompute,
            profile=o.profile,
        )  # fmt: skip

    def numerics() -> Numerics:
        shape = o.shapes[0] if o.shapes else _SMALL
        return Numerics(shape, repeats=o.repeats or 4, micro_batch_tokens=o.micro_batch_tokens)

    def scaling() -> Scaling:
        return Scaling(o.sequences, o.contexts, group_size=o.group_size, repeats=o.repeats or 3)

    def limit() -> MachineLimit:
        return MachineLimit(o.rows, repeats=o.repeats or 3)

    if name == "cpu":
        return [limit(), generation(_SINGLE, _SMALL, _LARGE), step(_SMALL), numerics(), scaling()]
    if name == "check":
        # Ratios and shares in a few minutes: the one peer that is always installed, and zerogap's steps alone.
        few = Choice(tuple(set(o.peers) & {"transformers"}), None)
        nobody = Choice((), None)
        return [
            generation(_CHECK_SINGLE, _CHECK_SMALL, asked=few),
            step(_CHECK_SMALL, asked=nobody),
        ]
    return [
        {
            "rollout": lambda: generation(_SMALL, _LARGE),
            "single": lambda: generation(_SINGLE, repeats=5),
            "step": lambda: step(_SMALL),
            "scaling": scaling,
            "numerics": numerics,
            "limit": limit,
        }[name]()
    ]


def _choice(options: BenchOptions) -> Choice:
    return Choice(options.peers, options.vllm_python)


def _plain(options: BenchOptions) -> dict[str, Any]:
    return {name: _plain_value(value) for name, value in vars(options).items()}


def _plain_value(value: object) -> object:
    if isinstance(value, Path):
        # Only the name of the file, without the path on this machine: reports are published.
        return value.name
    if isinstance(value, (tuple, list)):
        return [str(item) if isinstance(item, RunShape) else item for item in value]
    return value
