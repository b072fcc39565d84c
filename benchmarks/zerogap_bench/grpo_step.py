"""How fast is a whole GRPO step, as a share of the machine's limit, and compared with TRL?

A step generates all answers, rewards them (pseudo-random numbers, so that every group has a signal), computes
advantages, trains once on all samples and publishes the weights to the engine. TRL's GRPOTrainer does the same with
the same model, prompts, lengths and objective.

There are two shares. ``share_of_limit`` counts the prompt of a group once, as it is computed here. ``conventional_share``
counts every token of every sequence, as papers do: 2 N per generated or prefilled token and 6 N per trained one (8 N with
recomputation). It counts work that prompt sharing avoids, so it is not an efficiency.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from zerogap.errors import BenchmarkError
from zerogap_bench.flops import (
    ModelShape,
    PromptWork,
    Work,
    conventional_flops,
    num_sequence_tokens,
    num_training_rows,
    training_work,
)
from zerogap_bench.gemm import share_of_limit
from zerogap_bench.generation import roofline_table
from zerogap_bench.peers import Choice
from zerogap_bench.prepare import Prepared
from zerogap_bench.profiling import ProfileTable
from zerogap_bench.question import Setting
from zerogap_bench.records import Measured, PeerMeasured
from zerogap_bench.shapes import RunShape
from zerogap_bench.summary import rollout_work, summarise, summarise_peer
from zerogap_bench.tables import Table, load_warning, profile_table, show_share, show_spread
from zerogap_bench.workers import Worker

LEARNING_RATE = 1e-6


@dataclass
class _Runs:
    """The runs of one shape."""

    ours: list[Measured] = field(default_factory=list)
    trl: list[PeerMeasured] = field(default_factory=list)
    profile: ProfileTable | None = None


class GrpoStep:
    """Whole steps of zerogap and TRL, in turns."""

    name = "step"

    def __init__(
        self,
        shapes: Sequence[RunShape],
        *,
        repeats: int,
        choice: Choice,
        trl_repeats: int = 1,
        trl_micro_batch: int = 8,
        micro_batch_tokens: int = 1024,
        recompute: bool = False,
        profile: bool = False,
    ) -> None:
        self._runs = {shape: _Runs() for shape in shapes}
        self._repeats, self._choice, self._profile = repeats, choice, profile
        self._trl_repeats, self._trl_micro_batch = trl_repeats, trl_micro_batch
        self._micro_batch_tokens, self._recompute = micro_batch_tokens, recompute
        self._model: ModelShape | None = None
        self.failures: list[str] = []

    @property
    def num_prompts(self) -> int:
        """The largest number of any shape."""
        return max(shape.num_prompts for shape in self._runs)

    def measure(self, setting: Setting) -> None:
        """Measure each shape in new processes, because a trainer's memory is large."""
        self._model = setting.prepared.shape
        for shape, runs in self._runs.items():
            self._measure_shape(setting, shape, runs)

    def tables(self) -> list[Table]:
        """Tables of steps, the roofline and the parts of a step's time."""
        results = self.results()
        if not results:
            return []
        sides = [*results, *(result["trl"] for result in results if result["trl"])]
        warning = load_warning([load for side in sides for load in side["others_load"]])
        tables = [
            Table(
                "A whole GRPO step: median (lowest..highest)",
                [row for result in results for row in _rows(result)],
                [*self._notes(), *warning],
            ),
            roofline_table("Steps under the roofline", results),
            Table(
                "zerogap's step: seconds by part (train/... are parts of train)",
                [{"shape": result["shape"], **result["seconds_by_part"]} for result in results],
            ),
        ]
        for shape, runs in self._runs.items():
            if runs.profile:
                tables.append(profile_table(f"{shape}: where the time goes", runs.profile))
        return tables

    def report(self) -> dict[str, Any]:
        """Every shape's numbers, and notes on TRL."""
        return {"shapes": self.results(), "notes": self._notes()}

    def results(self) -> list[dict[str, Any]]:
        """Results of every shape that has been measured at least once."""
        return [self._result(shape, runs) for shape, runs in self._runs.items() if runs.ours]

    def _measure_shape(self, setting: Setting, shape: RunShape, runs: _Runs) -> None:
        prepared = setting.prepared
        rows = micro_batch_rows(prepared, shape, self._micro_batch_tokens)
        with ExitStack() as stack:
            setting.say(f"step {shape}: starting zerogap")
            ours = stack.enter_context(
                start_step(prepared, shape, self._micro_batch_tokens, recompute=self._recompute)
            )
            trl = self._start_trl(setting, shape, stack)
            for repeat in range(self._repeats):
                runs.ours.append(ours.call("run", seed=repeat, num_training_rows=rows))
                setting.say(f"step {shape}, run {repeat + 1}, zerogap: {runs.ours[-1].seconds:.1f} s")  # fmt: skip
                if trl is not None and repeat < self._trl_repeats:
                    trl = self._measure_trl(setting, shape, repeat, trl)
            if self._profile:
                runs.profile = ours.call("profile", seed=self._repeats)

    def _start_trl(self, setting: Setting, shape: RunShape, stack: ExitStack) -> Worker | None:
        if not self._choice.takes("trl"):
            return None
        setting.say(f"step {shape}: starting TRL")
        try:
            return stack.enter_context(
                Worker(
                    "TRL", "zerogap_bench.sides.trl_side:TrlStep",
                    threads=setting.prepared.threads, prepared=setting.prepared, shape=shape,
                    micro_batch=self._micro_batch_of(shape),
                    learning_rate=LEARNING_RATE, output_dir=str(setting.folder / "trl"),
                )
            )  # fmt: skip
        except BenchmarkError as error:
            self._fail(setting, error)
            return None

    def _measure_trl(
        self, setting: Setting, shape: RunShape, repeat: int, trl: Worker
    ) -> Worker | None:
        try:
            measured = trl.call("run", seed=repeat)
        except BenchmarkError as error:
            self._fail(setting, error)
            return None
        self._runs[shape].trl.append(measured)
        setting.say(f"step {shape}, run {repeat + 1}, TRL: {measured.seconds:.1f} s")
        return trl

    def _fail(self, setting: Setting, error: BenchmarkError) -> None:
        setting.say(f"TRL: {error}")
        self.failures.append(f"TRL failed: {str(error).strip().splitlines()[-1]}")

    def _micro_batch_of(self, shape: RunShape) -> int:
        """Sequences in a forward pass of TRL; it must divide the number of sequences."""
        return math.gcd(self._trl_micro_batch, shape.num_sequences)

    def _notes(self) -> list[str]:
        reason = self._choice.why_not("trl") if "trl" in self._choice.names else None
        missing = [] if reason is None else [f"trl: {reason}"]
        smaller = [
            f"{shape}: TRL computed {self._micro_batch_of(shape)} sequences at a time, because {self._trl_micro_batch} does not divide {shape.num_sequences}; its time is not comparable"
            for shape, runs in self._runs.items()
            if runs.trl and self._micro_batch_of(shape) != self._trl_micro_batch
        ]
        return [*missing, *smaller, *self.failures]

    def _result(self, shape: RunShape, runs: _Runs) -> dict[str, Any]:
        model = self._model
        assert model is not None, "something was measured, so the model is known"

        def count_works(run: Measured) -> Mapping[str, Work]:
            return {
                "generate": rollout_work(model, run),
                "train": training_work(
                    model,
                    run.prompts,
                    recompute=self._recompute,
                    num_distinct_rows=run.num_distinct_training_rows,
                ),
            }

        result = summarise(model, shape, runs.ours, count_works)
        tokens = num_sequence_tokens(runs.ours[0].prompts)
        factor = 2 + (8 if self._recompute else 6)
        conventional = conventional_flops(model, num_tokens=tokens, factor=factor)
        trl = summarise_peer(shape, runs.trl, runs.ours) if runs.trl else None
        return (
            result
            | {
                "step_s": result["seconds"],
                "conventional_share": share_of_limit(
                    conventional, seconds=result["seconds"], limit=result["limit_gflops"]
                ),
                "num_training_rows": median(run.num_training_rows for run in runs.ours),
                "num_micro_batches": median(run.num_micro_batches for run in runs.ours),
                "trl": trl,
            }
            | ({"ratio_to_trl": trl["ratio"]["median"]} if trl else {})
            | ({"profile": runs.profile.rows} if runs.profile else {})
        )


def start_step(
    prepared: Prepared,
    shape: RunShape,
    micro_batch_tokens: int,
    *,
    recompute: bool = False,
    numerics: str = "exact",
    precision: str = "fp32",
) -> Worker:
    """Start zerogap's side; the last four arguments are settings of a recipe."""
    train = {
        "learning_rate": LEARNING_RATE,
        "micro_batch_tokens": micro_batch_tokens,
        "recompute": recompute,
    }
    return Worker(
        f"zerogap, {numerics}, {precision}", "zerogap_bench.sides.zerogap_side:Step",
        threads=prepared.threads, prepared=prepared, shape=shape, train=train, numerics=numerics, precision=precision,
    )  # fmt: skip


def micro_batch_rows(prepared: Prepared, shape: RunShape, budget: int) -> int:
    """Average rows of a micro-batch, for the limit."""
    answers = (shape.max_new_tokens,) * shape.group_size
    prompts = prepared.prompt_ids[: shape.num_prompts]
    total = num_training_rows([PromptWork(len(ids), 0, answers) for ids in prompts])
    return math.ceil(total / math.ceil(total / budget))


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    before, after = result["limit_gflops_before"], result["limit_gflops_after"]
    generate_s = result["seconds_by_part"]["generate"]
    ours = {
        "shape": result["shape"],
        "side": "zerogap",
        "step s": show_spread(result["spread"]["seconds"]),
        "generate s": f"{generate_s:.1f}",
        "the rest s": f"{result['step_s'] - generate_s:.1f}",
        "share of limit": show_share(result["share_of_limit"]),
        "(conventional)": show_share(result["conventional_share"]),
        "limit GFLOP/s, before..after": f"{before:.1f}..{after:.1f}",
        "peak GB": f"{result['peak_rss_gb']:.2f}",
        "zerogap is faster by": "",
    }
    peer = result["trl"]
    if peer is None:
        return [ours]
    generate_s = peer["generate_s"]["median"]
    theirs = {
        **dict.fromkeys(ours, ""),
        "shape": result["shape"],
        "side": "TRL",
        "step s": show_spread(peer["seconds"]),
        "generate s": f"{generate_s:.1f}",
        "the rest s": f"{peer['seconds']['median'] - generate_s:.1f}",
        "peak GB": f"{peer['peak_rss_gb']:.2f}",
        "zerogap is faster by": f"{show_spread(peer['ratio'])}x",
    }
    return [ours, theirs]
