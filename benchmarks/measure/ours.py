"""zerogap's side: rollouts and whole steps through the same classes as a training run. Lives in a worker process."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from measure.flops import PromptWork
from measure.gemm import Limit, measure_limit
from measure.machine import OthersLoad, peak_rss_gb
from measure.prepare import Prepared
from measure.profiling import ProfileTable, profiled
from measure.records import Measured
from measure.shapes import RunShape
from zerogap.algorithms import group_advantages
from zerogap.config.engine import EngineConfig
from zerogap.config.loss import LossConfig
from zerogap.config.model import ModelSection
from zerogap.config.train import TrainConfig
from zerogap.engine import EngineStats
from zerogap.kernels import PAGE_SIZE
from zerogap.run.policy import load_policy
from zerogap.train import Trainer
from zerogap.types import GenerateOutput, GenerateRequest, Sample, SamplingParams

_WARM_UP = RunShape(2, 2, 2)
_MIN_RUNNING = 8
"""The warm-up's sequences fit, whatever the shape."""
_SCHEDULED_TOKENS = 1024
"""Row budget of a forward pass: the engine's default."""


class Rollout:
    """Generates all answers to the prompts, with log-probs, from an empty prefix cache."""

    def __init__(self, *, prepared: Prepared, shape: RunShape) -> None:
        self._prepared, self._shape = prepared, shape
        self.policy = load_policy(ModelSection(path=prepared.model), seed=0)
        longest = max(map(len, prepared.prompt_ids[: shape.num_prompts]))
        limits = EngineConfig(
            # Room for every sequence without sharing, so that nothing is retracted.
            kv_cache_tokens=(longest + shape.max_new_tokens + 2 * PAGE_SIZE) * shape.num_sequences,
            max_running=max(_MIN_RUNNING, shape.num_sequences),
            max_scheduled_tokens=max(_SCHEDULED_TOKENS, shape.num_sequences),
        )
        self.engine = self.policy.engine(limits)
        self._generate(_WARM_UP, seed=0)

    def run(self, *, seed: int) -> Measured:
        """One measured run, between two measurements of the limit."""
        before = self._limit()
        stats = self.engine.stats
        with OthersLoad() as others:
            outputs = self._generate(self._shape, seed=seed)
        spent = self.engine.stats - stats
        peak = peak_rss_gb()
        return Measured(
            seconds=others.wall_s,
            others_load=others.share,
            prompts=prompt_works(outputs, spent),
            limits={"generate": (before, self._limit())},
            peak_rss_gb=peak,
            seconds_by_part=_engine_seconds(spent),
            num_recomputed_tokens=spent.num_recomputed_tokens,
        )

    def profile(self, *, seed: int) -> ProfileTable:
        """A run under the profiler: slower than a measured one."""
        with profiled() as table:
            self._generate(self._shape, seed=seed)
        return table

    def _limit(self) -> Limit:
        return measure_limit(self._prepared.shape, num_rows=self._shape.num_sequences)

    def _generate(self, shape: RunShape, *, seed: int) -> list[GenerateOutput]:
        is_empty = self.engine.flush_cache()
        assert is_empty, "sequences of an earlier run still hold pages"
        return self.engine.generate(requests(self._prepared, shape, seed=seed))


class Step:
    """Whole GRPO steps: generate, reward, advantages, train, publish; engine and trainer share the weights."""

    def __init__(self, *, prepared: Prepared, shape: RunShape, train: dict[str, object]) -> None:
        self._prepared, self._shape = prepared, shape
        self._rollout = Rollout(prepared=prepared, shape=shape)
        self._trainer = Trainer(
            self._rollout.policy.model,
            TrainConfig(**train),
            LossConfig(),
            total_steps=1_000,
            vocab_limit=self._rollout.policy.vocab_limit,
        )
        self._version = 0
        self._step(_WARM_UP, seed=0)

    def run(self, *, seed: int, num_training_rows: int) -> Measured:
        """One measured step, between two measurements of both limits.

        Args:
            seed: of sampling and rewards.
            num_training_rows: rows of a micro-batch, for the limit.
        """
        before = self._limits(num_training_rows)
        stats = self._rollout.engine.stats
        with OthersLoad() as others:
            outputs, seconds, metrics = self._step(self._shape, seed=seed)
        peak = peak_rss_gb()
        after = self._limits(num_training_rows)
        spent = self._rollout.engine.stats - stats
        parts = {f"train/{name}": s for name, s in metrics.seconds.items()}
        return Measured(
            seconds=others.wall_s,
            others_load=others.share,
            prompts=prompt_works(outputs, spent),
            limits={phase: (before[phase], after[phase]) for phase in before},
            peak_rss_gb=peak,
            seconds_by_part={**seconds, **parts},
            num_recomputed_tokens=spent.num_recomputed_tokens,
            num_training_rows=metrics.num_rows,
            num_micro_batches=metrics.num_micro_batches,
        )

    def profile(self, *, seed: int) -> ProfileTable:
        """A step under the profiler: slower than a measured one."""
        with profiled() as table:
            self._step(self._shape, seed=seed)
        return table

    def _limits(self, num_training_rows: int) -> dict[str, Limit]:
        shape = self._prepared.shape
        return {
            "generate": measure_limit(shape, num_rows=self._shape.num_sequences),
            "train": measure_limit(shape, num_rows=num_training_rows),
        }

    def _step(self, shape: RunShape, *, seed: int):
        seconds = {}
        start_s = perf_counter()

        def lap(name: str) -> None:
            nonlocal start_s
            seconds[name] = perf_counter() - start_s
            start_s = perf_counter()

        engine = self._rollout.engine
        outputs = engine.generate(requests(self._prepared, shape, seed=seed))
        lap("generate")
        samples = scored_samples(outputs, seed=seed)
        found = group_advantages(
            np.array([sample.reward for sample in samples]),
            [sample.group_id for sample in samples],
            np.ones(len(samples), bool),
            normalize_std=True,
        )
        lap("score")
        metrics = self._trainer.step(samples, found.advantages.tolist())
        lap("train")
        # Publishing copies nothing: the engine reads the trainer's storage, and the old prefixes are dropped.
        self._version += 1
        engine.set_weight_version(self._version)
        lap("publish")
        return outputs, seconds, metrics


def requests(prepared: Prepared, shape: RunShape, *, seed: int) -> list[GenerateRequest]:
    """One request a prompt; every answer has the full length."""
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
    """What was generated, in tokens; checked against the rows that the engine counted."""
    by_request: dict[str, list[GenerateOutput]] = {}
    for output in outputs:
        by_request.setdefault(output.rid, []).append(output)
    works = tuple(
        PromptWork(
            num_prompt=len(group[0].prompt_ids),
            # The sibling that computed the prompt found least; the others found all of it.
            num_cached=min(output.num_cached_tokens for output in group),
            num_answers=tuple(len(output.output_ids) for output in group),
        )
        for group in by_request.values()
    )
    counted = spent.num_prefill_tokens + spent.num_decode_tokens
    derived = sum(
        work.num_prompt - work.num_cached + sum(n - 1 for n in work.num_answers) for work in works
    )
    assert counted == derived, f"the engine computed {counted} rows, its outputs explain {derived}"
    return works


def _engine_seconds(spent: EngineStats) -> dict[str, float]:
    return {
        "schedule": spent.schedule_s,
        "compute": spent.compute_s,
        "commit": spent.commit_s,
    }
