"""Rollouts of two turns train like any other: the trainer's log-probs of every turn have the engine's bits."""

import numpy as np
from helpers.engine_samples import sampled, trainer_of
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import train_on
from helpers.two_turns import TwoTurns

from zerogap.data import PromptItem
from zerogap.engine import AsyncEngine
from zerogap.rollout import Collector, run_async
from zerogap.types import Sample, SamplingParams, Source

ITEMS = [PromptItem(item_id=str(k), question="\x0b\x15\x1f\x29" * (3 + 3 * k)) for k in range(3)]
"""Characters whose code points are ids of the tiny model."""


def test_two_turns_train_with_a_gap_of_zero():
    model = tiny_model()
    trainer = trainer_of(model)
    with AsyncEngine(tiny_engine(model)) as engine:
        collector = Collector(
            engine,
            TwoTurns(),
            decode=str,
            vocab_limit=97,
            sampling=SamplingParams(max_new_tokens=12, temperature=0.7),
            group_size=4,
            seed=3,
        )
        for step in range(1, 4):
            samples = run_async(collector.collect(ITEMS, step=step)).samples
            reported = [s.rollout_log_probs[s.weight_version >= 0] for s in samples]
            assert all(len(sample.turns) == 2 for sample in samples)
            engine.begin_weight_update()
            trained = train_on(trainer, samples)
            engine.end_weight_update(step)
            assert trained.gap.max == 0.0
            assert trained.grad_norm > 0
            EXACT.check(sampled(trained.old_log_probs, samples), reported)
        assert {int(v) for s in samples for v in s.weight_version} == {-1, 2}
        # The second turn reuses pages of the first.
        assert engine.stats.num_cached_tokens > 0
    with planted_fault("the trainer sees another reply than the policy saw"):
        changed = [_with_other_reply(sample) for sample in samples]
        EXACT.check(
            sampled(trainer.score(changed), samples), sampled(trainer.score(samples), samples)
        )


def _with_other_reply(sample: Sample) -> Sample:
    ids = sample.token_ids.copy()
    ids[sample.source == Source.ENVIRONMENT] = 9
    columns = {name: getattr(sample, name) for name in sample.columns}
    return Sample(**columns | {"token_ids": ids}, group_id=sample.group_id, rollout_id=sample.rollout_id, temperature=sample.temperature)  # fmt: skip


def test_turns_do_not_depend_on_what_is_generated_beside_them():
    def rollouts(items, **engine):
        with AsyncEngine(tiny_engine(tiny_model(), **engine)) as generator:
            collector = Collector(
                generator, TwoTurns(), decode=str, vocab_limit=97,
                sampling=SamplingParams(max_new_tokens=12), group_size=4, seed=3,
            )  # fmt: skip
            samples = run_async(collector.collect(items, step=1)).samples
            return {s.rollout_id: [s.token_ids, s.rollout_log_probs] for s in samples}

    together = rollouts(ITEMS)
    alone = rollouts(ITEMS[:1], max_running=1, prefix_cache=False)
    EXACT.check(alone, {name: together[name] for name in alone})
    assert not np.array_equal(*(together[f"train-000001-0000/{k}"][0] for k in (0, 1)))
