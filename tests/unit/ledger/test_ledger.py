from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.ledgers import entry_of, same_ids, scorer_of
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import make_groups, make_sample

from zerogap.config.monitoring import LedgerConfig
from zerogap.errors import NumericsError, WeightSyncError
from zerogap.ledger import Ledger, attribute_samples
from zerogap.obs import METRICS, JsonlFile, read_jsonl
from zerogap.train import score_samples
from zerogap.types import Outcome
from zerogap.weights import WeightHistory


class CountingScorer:
    """Scores -1 nats for everything and records its calls."""

    def __init__(self, gone=(), value=-1.0) -> None:
        self.asked, self._gone, self._value = [], gone, value

    def score(self, samples, *, version, routes):
        if version in self._gone:
            return None
        self.asked.append((version, routes, [sample.rollout_id for sample in samples]))
        return [
            np.where(sample.weight_version >= 0, np.float32(self._value), np.nan)
            for sample in samples
        ]


def ledger_of(**config) -> Ledger:
    return Ledger(
        CountingScorer(), LedgerConfig(**config), reencode=same_ids, seed=3, is_exact=True
    )


def chosen_ids(ledger: Ledger, samples, step: int) -> list[str]:
    return [samples[i].rollout_id for i in ledger.choose(samples, step=step)]


def test_a_step_has_its_samples_and_another_step_has_others():
    samples = make_groups(10, 4)
    first, again, other = (chosen_ids(ledger_of(), samples, step) for step in (1, 1, 2))
    assert first == again != other
    assert len(first) == len(set(first)) == 4


def test_the_share_is_of_sampled_tokens():
    samples = make_groups(10, 4)
    ledger = ledger_of(share=0.5, min_samples=1)
    held = sum(samples[i].num_loss_tokens for i in ledger.choose(samples, step=1))
    assert held >= 0.5 * sum(sample.num_loss_tokens for sample in samples)


def test_what_cannot_train_is_not_audited():
    good = make_sample([1, 2], [3, 4], index=0)
    failed = make_sample([1, 2], [3, 4], index=1).failed(Outcome.VERIFIER_FAILED, "no")
    silent = make_sample([1, 2], [3, 4], index=2, loss_mask=[False, False])
    masked = make_sample([1, 2], [3, 4], index=3)
    aborted = replace(masked, outcome=Outcome.ABORTED, reward=None)
    assert aborted.num_loss_tokens > 0
    assert chosen_ids(ledger_of(share=1.0), [failed, silent, aborted, good], 1) == ["g0/0"]
    entry = ledger_of(share=1.0).measure([failed, silent], step=1, version=0)
    assert (entry.rollout_ids, entry.num_tokens, entry.statistics) == ((), 0, None)


def test_tokens_that_do_not_train_enter_no_statistic():
    sample = make_sample([1, 2], [3, 4, 5], loss_mask=[True, False, True], rollout_log_probs=[-1, -9, -1])  # fmt: skip
    entry = entry_of(CountingScorer(), [sample])
    assert entry.num_tokens == 2
    assert entry.statistics.total.open.max == 0.0


def test_present_weights_take_one_pass():
    scorer = CountingScorer()
    entry_of(scorer, make_groups(2, 2))
    (alone, everything) = scorer.asked
    assert (alone[0], len(alone[2]), everything[0], len(everything[2])) == (0, 1, 0, 4)


def test_old_weights_take_one_pass_a_version_over_the_samples_that_they_drew():
    scorer, samples = CountingScorer(), make_groups(2, 2)
    old = [replace(s, weight_version=np.where(s.weight_version >= 0, 3, -1)) for s in samples[:2]]
    new = [replace(s, weight_version=np.where(s.weight_version >= 0, 4, -1)) for s in samples[2:]]
    entry_of(scorer, [*old, *new], version=4)
    # The single one of version 4 is the sample that is scored twice.
    assert sorted((version, len(ids)) for version, _, ids in scorer.asked) == [(3, 2), (4, 1), (4, 4)]  # fmt: skip


def test_unattributed_tokens_are_counted_beside_the_others():
    samples = make_groups(2, 2)
    old = [replace(s, weight_version=np.where(s.weight_version >= 0, 3, -1)) for s in samples[:2]]
    new = [replace(s, weight_version=np.where(s.weight_version >= 0, 4, -1)) for s in samples[2:]]
    entry = entry_of(CountingScorer(gone={3}), [*old, *new], version=4)
    assert entry.num_unattributed == sum(sample.num_loss_tokens for sample in old)
    assert entry.num_tokens == sum(sample.num_loss_tokens for sample in new)


def test_without_the_present_weights_there_is_nothing_to_compare_with():
    with pytest.raises(WeightSyncError, match="no weights of version 0"):
        entry_of(CountingScorer(gone={0}), make_groups(1, 2))


def test_a_log_prob_that_is_not_a_number_names_the_sample():
    with pytest.raises(NumericsError, match=r"rollout g0/0, position 2: the log-prob at stage a2"):
        entry_of(CountingScorer(value=np.nan), [make_sample([1, 2], [3, 4])])


def test_the_audit_changes_no_weight_and_no_gradient():
    model = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    entry_of(scorer_of(model), make_groups(2, 2))
    EXACT.check(dict(model.named_parameters()), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_every_held_version_is_scored_with_its_own_weights_in_any_order():
    """One copy serves all old versions; it holds no gradient buffers, though the trainer's model does."""
    samples, history, expected = make_groups(1, 2), WeightHistory(3), {}
    for version in range(3):
        model = tiny_model(seed=version)
        history.remember(version, model)
        expected[version] = scorer_of(model).score(samples, version=0, routes="free")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    scorer = scorer_of(model, version=2, history=history)
    for version in (0, 1, 2, 1, 0):
        EXACT.check(scorer.score(samples, version=version, routes="free"), expected[version])
    assert all(parameter.grad is None for parameter in scorer._old_model.parameters())
    with planted_fault("version 0 for version 1"):
        EXACT.check(scorer.score(samples, version=0, routes="free"), expected[1])


def test_a_line_says_everything_and_metrics_are_declared():
    sample = make_sample([1, 2], [3, 4], rollout_log_probs=[-1.5, -1.0])
    entry = entry_of(CountingScorer(), [sample])
    line = entry.to_json()
    assert list(line) == ["step", "version", "rollouts", "num_tokens", "num_unattributed", "num_differing",
                          "differing_share", "sources", "total", "worst", "recheck"]  # fmt: skip
    assert line["worst"] == [
        {"rollout_id": "g0/0", "position": 2, "source": "numbers", "value": 0.5}
    ]
    assert line["sources"]["numbers"]["open"] == line["total"]["open"]
    assert line["total"]["open"]["mean"] == 0.25
    metrics = entry.metrics()
    assert set(metrics) <= set(METRICS)
    assert (metrics["gap/total/mean"], metrics["gap/numbers/raw/max"]) == (0.25, 0.5)
    assert metrics["gap/tokens/differing_share"] == 0.0


def test_the_worst_tokens_are_the_five_that_a_source_moved_most():
    gaps = np.array([0.1, 0.9, 0.3, 0.2, 0.8, 0.0, 0.4])
    samples = [make_sample([1, 2], [3] * 7, index=i, rollout_log_probs=-1 - gaps / (i + 1)) for i in range(2)]  # fmt: skip
    worst = entry_of(CountingScorer(), samples).worst
    assert [(token.rollout_id, token.position) for token in worst] == [
        ("g0/0", 3), ("g0/0", 6), ("g0/1", 3), ("g0/0", 8), ("g0/1", 6)
    ]  # fmt: skip
    assert worst[0].value == pytest.approx(0.9)


def test_lines_of_steps_that_are_done_again_go(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(CountingScorer(), LedgerConfig(), reencode=same_ids, seed=0, is_exact=True)
    samples = make_groups(2, 3)
    for resumed in (-1, 2):
        with JsonlFile(path, keep_until_step=resumed) as file:
            for step in range(resumed + 1 or 1, 5):
                file.write(ledger.measure(samples, step=step, version=0).to_json())
    assert [line["step"] for line in read_jsonl(path)] == [1, 2, 3, 4]


def test_columns_reach_whoever_shows_tokens():
    sample = make_sample([1, 2], [3, 4], rollout_log_probs=[-1.5, -1.0])
    (audited,) = attribute_samples(
        [sample], CountingScorer(), version=0, is_exact=True, reencode=same_ids
    )
    expected = {"numbers": np.array([np.nan, np.nan, 0.5, 0.0])}
    EXACT.check({"numbers": audited.attribution.differences["numbers"]}, expected)
    with planted_fault("differences of the wrong token"):
        EXACT.check({"numbers": audited.attribution.differences["numbers"][::-1].copy()}, expected)


def test_a_trainer_that_scores_every_sample_is_not_asked_twice():
    """A step of one update computes the missing stage before its weights change, so the ledger makes no pass for it."""
    scorer, samples = CountingScorer(value=-0.75), make_groups(4, 2)
    ledger = Ledger(
        scorer, LedgerConfig(share=1.0), reencode=same_ids, seed=0, is_exact=True, trainer_scores=True
    )  # fmt: skip
    started = ledger.start(samples, step=1, version=0)
    assert [len(ids) for _, _, ids in scorer.asked] == [1]
    own = [np.where(s.loss_mask, np.float32(-0.75), np.nan) for s in samples]
    entry = started.finish(own)
    assert len(scorer.asked) == 1
    signed = np.concatenate([-0.75 - s.rollout_log_probs[s.loss_mask] for s in samples]).mean()
    assert entry.statistics.sources["numbers"].open.signed_mean == pytest.approx(signed, abs=1e-6)
    again = ledger.start(samples, step=1, version=0)
    with pytest.raises(NumericsError, match="stage a2"):
        again.finish([np.full(len(s), np.nan) for s in samples])


def test_what_the_trainer_will_not_score_is_scored_before_the_weights_move():
    """The ledger's own passes: other versions, text that encodes to different ids, and everything if a step makes several updates."""
    model, samples = tiny_model(), make_groups(2, 2)
    old = [replace(s, weight_version=np.where(s.weight_version >= 0, 3, -1)) for s in samples[:2]]
    new = [replace(s, weight_version=np.where(s.weight_version >= 0, 4, -1)) for s in samples[2:]]
    history = WeightHistory(1)
    history.remember(3, tiny_model(seed=1))
    entries = []
    for trainer_scores in (True, False):
        ledger = Ledger(
            scorer_of(model, version=4, history=history), LedgerConfig(share=1.0),
            reencode=same_ids, seed=0, is_exact=True, trainer_scores=trainer_scores,
        )  # fmt: skip
        started = ledger.start([*old, *new], step=1, version=4)
        own = score_samples(model, [*old, *new], micro_batch_tokens=256)
        with torch.no_grad():
            model.norm.weight.mul_(2)
        entries.append(started.finish(own))
        with torch.no_grad():
            model.norm.weight.div_(2)
    assert entries[0].to_json() == entries[1].to_json()
    assert entries[0].statistics.sources["staleness"].open.mean > 0
