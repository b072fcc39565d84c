"""Later updates take the engine's log-probs where these equal the trainer's, audit that, and report it."""

import math
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import make_groups, rewarded, train_on

from zerogap.algorithms import Algorithm, KLConfig
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer
from zerogap.train import native_trainer as native_trainer_module
from zerogap.train import old_log_probs as old_log_probs_module
from zerogap.train.metrics import OldLogProbAudit

KL = Algorithm(kl=KLConfig(kind="k3", coefficient=0.1))


def build(model, *, algorithm=None, **train):
    config = {"learning_rate": 1e-2, "micro_batch_tokens": 40, "updates_per_step": 3, **train}
    algorithm = algorithm or Algorithm()
    reference = tiny_model(seed=1) if algorithm.needs_reference else None
    return NativeTrainer(model, TrainConfig(**config), algorithm, total_steps=10, reference=reference)  # fmt: skip


def as_the_engine_would(samples, *, seed=0):
    """The same samples with the log-probs of ``tiny_model(seed)``."""
    scored = build(tiny_model(seed=seed)).score(samples)
    return [replace(s, rollout_log_probs=x) for s, x in zip(samples, scored, strict=True)]


SAMPLES = as_the_engine_would(make_groups(6, 4, seed=2))


def trained(samples=SAMPLES, *, exact_version=None, on_progress=None, **config):
    """(weights afterwards, metrics) of one step on ``tiny_model()``."""
    model = tiny_model()
    metrics = train_on(
        build(model, **config),
        rewarded(samples),
        exact_version=exact_version,
        on_progress=on_progress,
    )
    return {name: p.detach() for name, p in model.named_parameters()}, metrics


@cache
def scored_throughout():
    """The same for a step that scores everything; computed once."""
    return trained()


def changed(sample, position: int):
    """One unit in the last place of one log-prob."""
    log_probs = sample.rollout_log_probs.copy()
    log_probs[position] = np.nextafter(log_probs[position], np.float32(-np.inf))
    return replace(sample, rollout_log_probs=log_probs)


@pytest.mark.parametrize("algorithm", [Algorithm(), KL], ids=["grpo", "with kl"])
def test_what_is_taken_over_changes_no_bit_of_the_update(algorithm):
    weights, metrics = trained(exact_version=0, algorithm=algorithm)
    expected, plain = trained(algorithm=algorithm)
    EXACT.check(weights, expected)
    assert metrics.audit.num_taken > 0
    assert metrics.audit.num_different == 0
    assert (metrics.loss, metrics.policy, metrics.kl_to_rollout) == (
        plain.loss,
        plain.policy,
        plain.kl_to_rollout,
    )
    assert metrics.audit.num_taken + metrics.gap.num_tokens == plain.gap.num_tokens
    assert plain.audit.num_taken == plain.audit.num_audited == 0
    other = as_the_engine_would(SAMPLES, seed=5)
    with pytest.MonkeyPatch.context() as blind, planted_fault("old log-probs of other weights"):
        for module in (old_log_probs_module, native_trainer_module):
            blind.setattr(module, "compare", lambda *_: OldLogProbAudit())
        EXACT.check(trained(other, exact_version=0, algorithm=algorithm)[0], expected)


def test_the_trainers_column_holds_only_what_the_trainer_computed():
    _, metrics = trained(exact_version=0)
    _, plain = scored_throughout()
    num_taken = 0
    for mine, full in zip(metrics.old_log_probs, plain.old_log_probs, strict=True):
        is_taken = np.isnan(mine) & ~np.isnan(full)
        EXACT.check(mine[~is_taken], full[~is_taken])
        num_taken += int(is_taken.sum())
    assert num_taken == metrics.audit.num_taken > 0


def num_old_passes(samples=SAMPLES, **step) -> int:
    """Micro-batches that were scored for later updates."""
    seen = []
    trained(samples, on_progress=seen.append, **step)
    assert seen[-1].rows_done == seen[-1].rows_total
    return sum(progress.phase == "old" for progress in seen)


@cache
def num_later_passes() -> int:
    """Of a step that takes nothing from the engine."""
    return num_old_passes()


@pytest.mark.parametrize("audit_share", [0.01, 0.3, 0.5, 1.0])
def test_the_audited_share_of_the_groups_is_scored_and_at_least_one(audit_share):
    _, metrics = trained(exact_version=0, audit_share=audit_share)
    columns = zip(SAMPLES, metrics.old_log_probs, strict=True)
    scored = {sample.group_id for sample, column in columns if not np.isnan(column).all()}
    later = {f"g{number}" for number in range(2, 6)}
    assert scored >= {"g0", "g1"}, "the first update's own"
    assert len(scored & later) == math.ceil(audit_share * len(later))


def with_versions(sample, versions):
    """``versions`` of its sampled tokens."""
    return replace(sample, weight_version=np.where(sample.weight_version < 0, -1, versions))


def test_samples_of_other_weights_are_scored():
    expected, _ = scored_throughout()
    for version in (1, None):
        weights, metrics = trained(exact_version=version)
        EXACT.check(weights, expected)
        assert (metrics.audit.num_taken, metrics.audit.num_audited) == (0, 0)
    some = [with_versions(s, int(s.group_id in ("g3", "g4"))) for s in SAMPLES]
    # The sample was begun with older weights: the present ones drew only its last token.
    begun = [with_versions(s, np.arange(len(s)) == len(s) - 1) for s in SAMPLES]
    for samples, is_some_known in ((some, True), (begun, False)):
        weights, metrics = trained(samples, exact_version=1)
        EXACT.check(weights, expected)
        known = [s for s in samples if (s.weight_version[s.weight_version >= 0] == 1).all()]
        num_known = sum(s.num_loss_tokens for s in known)
        assert metrics.audit.num_taken + metrics.audit.num_audited <= num_known
        assert (metrics.audit.num_taken > 0) == is_some_known


def test_one_bit_in_an_audited_token_brings_back_the_whole_pass():
    expected, _ = scored_throughout()
    # Every sample is wrong in one token, so any micro-batch shows it.
    wrong = [changed(s, int(np.flatnonzero(s.loss_mask)[0])) for s in SAMPLES]
    weights, metrics = trained(wrong, exact_version=0)
    EXACT.check(weights, expected)
    audit = metrics.audit
    assert (audit.num_taken, audit.num_different) == (0, len(SAMPLES))
    assert audit.num_audited == metrics.num_loss_tokens
    assert audit.first_difference.startswith("rollout g")
    assert "position" in audit.first_difference
    assert metrics.gap.max > 0
    assert metrics.gap.num_tokens == metrics.num_loss_tokens
    assert num_old_passes(wrong, exact_version=0) == num_later_passes()


def test_a_difference_in_the_first_updates_own_forward_counts_too():
    # The first update trains the first groups; the other audited samples are correct.
    wrong = [changed(s, int(np.flatnonzero(s.loss_mask)[0])) if s.group_id == "g0" else s for s in SAMPLES]  # fmt: skip
    weights, metrics = trained(wrong, exact_version=0)
    EXACT.check(weights, scored_throughout()[0])
    assert metrics.audit.num_taken == 0
    assert metrics.audit.first_difference.startswith("rollout g0/")


def test_a_step_of_one_update_takes_nothing_and_audits_nothing():
    weights, metrics = trained(exact_version=0, updates_per_step=1)
    EXACT.check(weights, trained(updates_per_step=1)[0])
    assert (metrics.audit.num_taken, metrics.audit.num_audited) == (0, 0)


@pytest.mark.parametrize(
    "tables",
    [{"entropy": {"top_quantile": 0.5}}, {"advantage": {"kind": "token_baseline"}}],
    ids=["entropies", "square sums"],
)
def test_a_pass_that_is_made_for_other_statistics_gives_old_log_probs_and_an_audit_of_all(tables):
    """No second pass, nothing taken; a difference is reported and changes no bit of the update."""
    algorithm = Algorithm.preset("grpo", **tables)
    samples, rows = list(SAMPLES), Counter()
    position = int(np.flatnonzero(samples[3].loss_mask)[0])
    samples[3] = changed(samples[3], position)

    def count(progress):
        rows[progress.phase] = progress.rows_done - (rows.total() - rows[progress.phase])

    weights, metrics = trained(samples, exact_version=0, algorithm=algorithm, on_progress=count)
    assert rows == {"old": metrics.num_rows, "update": metrics.num_rows}
    audit = metrics.audit
    assert (audit.num_taken, audit.num_audited) == (0, metrics.num_loss_tokens)
    assert audit.num_different == 1
    assert samples[3].rollout_id in audit.first_difference
    expected, _ = trained(exact_version=0, algorithm=algorithm)
    EXACT.check(weights, expected)
    with planted_fault("all tokens, a plain baseline"):
        EXACT.check(weights, scored_throughout()[0])
