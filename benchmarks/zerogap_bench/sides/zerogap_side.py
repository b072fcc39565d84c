"""zerogap's side: rollouts and whole steps with the classes of a training run. Runs in a worker process."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from zerogap.algorithms import Algorithm
from zerogap.config.engine import EngineConfig
from zerogap.config.model import ModelSection
from zerogap.config.train import TrainConfig
from zerogap.engine import EngineStats
from zerogap.kernels import PAGE_SIZE
from zerogap.models import Precision
from zerogap.run import NumericsChoice, load_policy, return_free_memory, settle_numerics
from zerogap.train import NativeTrainer, TrainMetrics
from zerogap.types import GenerateOutput, GenerateRequest, Sample, SamplingParams
from zerogap_bench.flops import PromptWork
from zerogap_bench.gemm import Limit, measure_limit
from zerogap_bench.machine import OthersLoad, PeakMemory
from zerogap_bench.prepare import Prepared
from zerogap_bench.profiling import ProfileTable, profiled
from zerogap_bench.records import Decoding, Measured
from zerogap_bench.roofline import Bandwidth, measure_bandwidth, measure_fma_peak
from zerogap_bench.shapes import RunShape

WARM_UP = RunShape(2, 2, 2)
_MIN_RUNNING = 8
"""Enough for the sequences of the warm-up."""
_SCHEDULED_TOKENS = 1024
"""Rows of a forward pass: the engine's default."""
_TRAINED_ROWS = 1024
"""Rows of a micro-batch when GEMMs are timed."""


class Rollout:
    """Generates all answers to the prompts, with log-probs, from an empty prefix cache."""

    def __init__(
        self,
        *,
        prepared: Prepared,
        shapes: Sequence[RunShape],
        numerics: NumericsChoice = "exact",
        precision: Precision = "fp32",
    ) -> None:
        start_s = perf_counter()
        self._prepared, self._memory = prepared, PeakMemory()
        self.policy = load_policy(ModelSection(path=prepared.model, dtype=precision), seed=0)
        longest = max(map(len, prepared.prompt_ids[: max(s.num_prompts for s in shapes)]))
        most = max(_MIN_RUNNING, *(shape.num_sequences for shape in shapes))
        probe_start_s = perf_counter()
        self.numerics = settle_numerics(
            self.policy, numerics, engine_rows=most, trainer_rows=_TRAINED_ROWS
        )
        self.probe_s = perf_counter() - probe_start_s
        length = longest + max(2, *(shape.max_new_tokens for shape in shapes)) + 2 * PAGE_SIZE
        limits = EngineConfig(
            # Enough for every sequence without sharing, so that none is retracted.
            kv_cache_tokens=length * most,
            max_running=most,
            max_scheduled_tokens=max(_SCHEDULED_TOKENS, most),
        )
        self.engine = self.policy.engine(limits, gemm=self.numerics.engine)
        self.generate(WARM_UP, seed=0)
        self.start_s = perf_counter() - start_s

    def run(self, *, shape: RunShape, seed: int) -> Measured:
        """One measured run, between two measurements of the machine's limits."""
        is_single = shape.num_sequences == 1 and shape.max_new_tokens > 1
        with self._memory.leave_out():
            before = Bounds(self._prepared, {"generate": shape.num_sequences}, with_bandwidth=is_single)  # fmt: skip
        stats = self.engine.stats
        with OthersLoad() as others:
            outputs = self.generate(shape, seed=seed)
        spent = self.engine.stats - stats
        first_s = self._seconds_to_first_token(shape, seed=seed) if is_single else 0.0
        with self._memory.leave_out():
            after = Bounds(self._prepared, {"generate": shape.num_sequences}, with_bandwidth=is_single)  # fmt: skip
        return Measured(
            seconds=others.wall_s,
            others_load=others.share,
            prompts=prompt_works(outputs, spent),
            phase_seconds={"generate": others.wall_s},
            peak_rss_gb=self._memory.gb,
            seconds_by_part={
                part: getattr(spent, f"{part}_s") for part in ("schedule", "compute", "commit")
            },
            num_recomputed_tokens=spent.num_recomputed_tokens,
            num_generation_rows=spent.num_prefill_tokens + spent.num_decode_tokens,
            num_head_rows=spent.num_head_rows,
            limits=before.limits_with(after),
            fma_gflops=before.fma_with(after),
            decoding=before.decoding_with(
                after, (others.wall_s - first_s) / max(1, shape.max_new_tokens - 1)
            ),
        )

    def profile(self, *, shape: RunShape, seed: int) -> ProfileTable:
        """A run under the profiler: slower than a measured one."""
        with profiled() as table:
            self.generate(shape, seed=seed)
        return table

    def generate(self, shape: RunShape, *, seed: int) -> list[GenerateOutput]:
        """All answers, from an empty prefix cache."""
        is_empty = self.engine.flush_cache()
        assert is_empty, "sequences of an earlier run still hold pages"
        return self.engine.generate(requests(self._prepared, shape, seed=seed))

    def _seconds_to_first_token(self, shape: RunShape, *, seed: int) -> float:
        start_s = perf_counter()
        self.generate(RunShape(shape.num_prompts, shape.group_size, 1), seed=seed)
        return perf_counter() - start_s


class Step:
    """Whole GRPO steps: generate, reward, advantages, train, publish; engine and trainer share the weights."""

    def __init__(
        self,
        *,
        prepared: Prepared,
        shape: RunShape,
        train: dict[str, object],
        numerics: NumericsChoice = "exact",
        precision: Precision = "fp32",
    ) -> None:
        self._prepared, self._shape, self._memory = prepared, shape, PeakMemory()
        self._rollout = Rollout(
            prepared=prepared, shapes=[shape], numerics=numerics, precision=precision
        )
        self._trainer = NativeTrainer(
            self._rollout.policy.model,
            TrainConfig.model_validate(train),
            Algorithm(),
            total_steps=1_000,
            gemm=self._rollout.numerics.trainer,
        )
        self._version = 0
        self._step(WARM_UP, seed=0)

    def numerics(self) -> tuple[float, str]:
        """Seconds of probing or timing the GEMMs at the start, and its report."""
        return self._rollout.probe_s, self._rollout.numerics.report

    def run(self, *, seed: int, num_training_rows: int, with_limits: bool = True) -> Measured:
        """One measured step, between two measurements of the machine's limits.

        Args:
            seed: of sampling and rewards.
            num_training_rows: rows of a micro-batch, for the limit.
            with_limits: whether to measure the limits.
        """
        rows = {"generate": self._shape.num_sequences, "train": num_training_rows}
        with self._memory.leave_out():
            before = Bounds(self._prepared, rows if with_limits else {}, with_bandwidth=False)
        stats = self._rollout.engine.stats
        with OthersLoad() as others:
            outputs, seconds, metrics = self._step(self._shape, seed=seed)
        spent = self._rollout.engine.stats - stats
        with self._memory.leave_out():
            after = Bounds(self._prepared, rows if with_limits else {}, with_bandwidth=False)
        parts = {f"train/{name}": s for name, s in metrics.seconds.items()}
        return Measured(
            seconds=others.wall_s,
            others_load=others.share,
            prompts=prompt_works(outputs, spent),
            phase_seconds={phase: seconds[phase] for phase in rows},
            limits=before.limits_with(after),
            fma_gflops=before.fma_with(after),
            peak_rss_gb=self._memory.gb,
            seconds_by_part={**seconds, **parts},
            num_recomputed_tokens=spent.num_recomputed_tokens,
            num_generation_rows=spent.num_prefill_tokens + spent.num_decode_tokens,
            num_head_rows=spent.num_head_rows,
            num_training_rows=metrics.num_rows,
            num_distinct_training_rows=metrics.num_rows - metrics.num_rows_repeated,
            num_micro_batches=metrics.num_micro_batches,
        )

    def profile(self, *, seed: int) -> ProfileTable:
        """A step under the profiler: slower than a measured one."""
        with profiled() as table:
            self._step(self._shape, seed=seed)
        return table

    def _step(
        self, shape: RunShape, *, seed: int
    ) -> tuple[list[GenerateOutput], dict[str, float], TrainMetrics]:
        seconds: dict[str, float] = {}
        engine = self._rollout.engine
        with _lap(seconds, "generate"):
            outputs = engine.generate(requests(self._prepared, shape, seed=seed))
        with _lap(seconds, "score"):
            samples = scored_samples(outputs, seed=seed)
        with _lap(seconds, "train"):
            engine.release_memory_occupation()
            metrics = self._trainer.step(self._trainer.plan(samples))
            return_free_memory()
        with _lap(seconds, "publish"):
            # Nothing is copied: the engine reads the trainer's weights, and drops its prefix cache.
            self._version += 1
            engine.set_weight_version(self._version)
            engine.resume_memory_occupation()
        return outputs, seconds, metrics


class Bounds:
    """The machine's limits at one moment: its GEMMs, multiply-adds and, on request, its memory bandwidth."""

    def __init__(self, prepared: Prepared, rows: dict[str, int], *, with_bandwidth: bool) -> None:
        """Measure the limits.

        Args:
            prepared: has the sizes of the model.
            rows: rows of the GEMMs by phase.
            with_bandwidth: also measure read and copy bandwidth.
        """
        self._limits = {
            phase: measure_limit(prepared.shape, num_rows=num) for phase, num in rows.items()
        }
        self._fma = measure_fma_peak() if rows else None
        self._bandwidth: Bandwidth | None = measure_bandwidth() if with_bandwidth else None

    def limits_with(self, after: "Bounds") -> dict[str, tuple[Limit, Limit]]:
        """Both measurements, by phase."""
        return {phase: (limit, after._limits[phase]) for phase, limit in self._limits.items()}

    def fma_with(self, after: "Bounds") -> tuple[float, float] | None:
        """Both measurements of multiply-adds, GFLOP/s."""
        if self._fma is None or after._fma is None:
            return None
        return self._fma, after._fma

    def decoding_with(self, after: "Bounds", seconds_per_token: float) -> Decoding | None:
        """The result of a single sequence; None if bandwidth was not measured."""
        first, last = self._bandwidth, after._bandwidth
        if first is None or last is None:
            return None
        return Decoding(seconds_per_token, (first.read, last.read), (first.copy, last.copy))


@contextmanager
def _lap(seconds: dict[str, float], name: str) -> Generator[None]:
    start_s = perf_counter()
    yield
    seconds[name] = perf_counter() - start_s


def requests(prepared: Prepared, shape: RunShape, *, seed: int) -> list[GenerateRequest]:
    """One request per prompt; every answer has the full length."""
    params = {
        "max_new_tokens": shape.max_new_tokens,
        "n": shape.group_size,
        "ignore_eos": True,
        "temperature": 1.0,
    }
    return [
        GenerateRequest(
            input_ids=ids, sampling_params=SamplingParams(**params, sampling_seed=1000 * seed + i)
        )
        for i, ids in enumerate(prepared.prompt_ids[: shape.num_prompts])
    ]


def scored_samples(outputs: Sequence[GenerateOutput], *, seed: int) -> list[Sample]:
    """Samples with pseudo-random rewards, so that every group has a signal and no reward function is timed."""
    rewards = np.random.default_rng(seed).random(len(outputs))
    return [
        Sample.from_output(output, group_id=output.rid, temperature=1.0).scored(float(reward))
        for output, reward in zip(outputs, rewards, strict=True)
    ]


def prompt_works(outputs: Sequence[GenerateOutput], spent: EngineStats) -> tuple[PromptWork, ...]:
    """Token counts of the outputs, checked against the rows that the engine counted."""
    by_request: dict[str, list[GenerateOutput]] = {}
    for output in outputs:
        by_request.setdefault(output.rid, []).append(output)
    works = tuple(
        PromptWork(
            num_prompt=len(group[0].prompt_ids),
            # The sibling that computed the prompt found the fewest cached tokens; the others found all of them.
            num_cached=min(output.num_cached_tokens for output in group),
            num_answers=tuple(len(output.output_ids) for output in group),
        )
        for group in by_request.values()
    )
    counted = spent.num_prefill_tokens + spent.num_decode_tokens + spent.num_shared_decode_tokens
    derived = sum(
        work.num_prompt - work.num_cached + sum(n - 1 for n in work.num_answers) for work in works
    )
    assert counted == derived, f"the engine counted {counted} rows, its outputs explain {derived}"
    return works
