"""The second path of stage a4: what it notices, with planted faults that leave the sum of the sources as it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.ledgers import entry_of, same_ids, scorer_of
from helpers.tiny_models import tiny_model
from helpers.tolerance import FLOAT64_REFERENCE
from helpers.train_batches import make_groups, make_sample, train_on

from zerogap.config import TrainConfig
from zerogap.config.monitoring import LedgerConfig
from zerogap.errors import RecheckError
from zerogap.ledger import Ledger
from zerogap.obs import GAP_SOURCES, JsonlFile, read_jsonl
from zerogap.train import NativeTrainer, score_samples


def audit(model, samples, own_of, *, is_exact=True):
    """The entry of a step whose trainer gives ``own_of(model, samples)`` as its log-probs."""
    ledger = Ledger(
        scorer_of(model), LedgerConfig(share=1.0), reencode=same_ids, seed=0, is_exact=is_exact, trainer_scores=True
    )  # fmt: skip
    started = ledger.start(samples, step=1, version=0)
    return started.finish(own_of(model, samples))


def honest(model, samples):
    return score_samples(model, samples, micro_batch_tokens=256)


def of_a_sibling(model, samples):
    own = honest(model, samples)
    return [own[i ^ 1] for i in range(len(samples))]


def of_the_token_before(model, samples):
    return [np.r_[column[:3], np.roll(column[3:], 1)] for column in honest(model, samples)]


def one_ulp_off(model, samples):
    own = honest(model, samples)
    for sample, column in zip(samples, own, strict=True):
        first = np.flatnonzero(sample.loss_mask)[0]
        column[first] = np.nextafter(column[first], np.float32(-9))
    return own


@torch.no_grad()
def after_the_update(model, samples):
    model.norm.weight.mul_(1.01)
    return honest(model, samples)


SAMPLES = [make_sample([1, 2, 3], np.arange(5, 13) + 2 * i, index=i) for i in range(4)]
FAULTS = (of_a_sibling, of_the_token_before, one_ulp_off, after_the_update)


def test_the_trainers_own_pass_and_a_pass_over_one_sample_have_the_same_bits():
    """Packed, on shared prompts and with gradient against alone, cut and without."""
    model = tiny_model()
    samples = [sample.scored(i % 2) for i, sample in enumerate(make_groups(4, 4))]

    def train(model, samples):
        trainer = NativeTrainer(model, TrainConfig(), total_steps=1)
        return train_on(trainer, samples).old_log_probs

    recheck = audit(model, samples, train).recheck
    assert recheck.difference == 0.0
    assert recheck.log_prob == recheck.again < 0
    sample = {sample.rollout_id: sample for sample in samples}[recheck.rollout_id]
    assert sample.loss_mask[recheck.position]
    assert recheck.num_tokens == sample.loss_mask[: recheck.position + 1].sum()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stage_that_belongs_to_something_else_is_refused_by_name(fault):
    with pytest.raises(
        RecheckError, match=r"rollout g0/\d, position \d+: the log-prob .* is -\d.* and -\d.* alone"
    ):
        audit(tiny_model(), SAMPLES, fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sources_add_up_whatever_the_stages_hold(fault):
    """Why the sum is no check: each fault leaves it as it is."""
    columns = fault(tiny_model(), SAMPLES)
    given = [np.where(s.loss_mask, np.nan_to_num(c), np.nan) for s, c in zip(SAMPLES, columns, strict=True)]  # fmt: skip
    statistics = audit(tiny_model(), SAMPLES, lambda *_: given, is_exact=False).statistics
    parts = sum(statistics.sources[source].raw.signed_mean for source in GAP_SOURCES)
    FLOAT64_REFERENCE.check(parts, statistics.total.raw.signed_mean)


class CountsItsBatch:
    """Kernels whose rows depend on the number of samples in a pass."""

    def score(self, samples, *, version, routes):
        value = np.float32(-1 - 1e-6 * len(samples))
        return [np.where(sample.weight_version >= 0, value, np.nan) for sample in samples]


def test_kernels_that_depend_on_the_batch_are_refused_only_where_exactness_is_promised(tmp_path):
    with pytest.raises(RecheckError, match=r"-1\.0000\d+ in the .* and -1\.00000\d+ where"):
        entry_of(CountsItsBatch(), SAMPLES)
    entry = entry_of(CountsItsBatch(), SAMPLES, is_exact=False)
    assert entry.metrics()["gap/recheck/max"] == pytest.approx(3e-6, rel=0.1)
    with JsonlFile(tmp_path / "ledger.jsonl", keep_until_step=-1) as file:
        file.write(entry.to_json())
    (line,) = read_jsonl(tmp_path / "ledger.jsonl")
    assert line["recheck"]["log_prob"] < line["recheck"]["again"] < -1


def test_a_second_path_that_gives_no_number_differs():
    class Alone(CountsItsBatch):
        def score(self, samples, *, version, routes):
            found = super().score(samples, version=version, routes=routes)
            return found if len(samples) > 1 else [np.full(len(samples[0]), np.nan)]

    with pytest.raises(RecheckError, match="and nan where"):
        entry_of(Alone(), SAMPLES)


def test_each_step_draws_anew_and_a_repeated_step_draws_the_same():
    model, samples = tiny_model(), make_groups(4, 4)

    def drawn(version):
        found = entry_of(scorer_of(model, version=version), samples_of(version), version=version)
        return found.recheck.rollout_id, found.recheck.position

    def samples_of(version):
        return [replace(s, weight_version=np.where(s.weight_version >= 0, version, -1)) for s in samples]  # fmt: skip

    assert [drawn(v) for v in range(4)] == [drawn(v) for v in range(4)]
    assert len({drawn(v) for v in range(4)}) > 1


def test_samples_of_one_rollout_keep_their_own_log_probs():
    """A rollout whose context was cut has several samples under one id."""
    model = tiny_model()
    apart = [make_sample([1, 2, 3], [4 + i, 9, 7 + i, 5][: 4 - i], index=i) for i in range(3)]
    together = [replace(sample, rollout_id="g0/0") for sample in apart]
    found, expected = audit(model, together, honest), audit(model, apart, honest)
    assert found.statistics == expected.statistics
    assert found.rollout_ids == ("g0/0",) * 3
    whole = entry_of(scorer_of(model), together)
    assert whole.statistics == expected.statistics
