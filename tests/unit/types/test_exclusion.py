import numpy as np
import pytest

from zerogap.types import (
    Exclusion,
    Outcome,
    Sample,
    Source,
    counts_in_group,
    exclusion_reason,
)


def sample(*, trains=True, outcome=Outcome.COMPLETED):
    return Sample(
        token_ids=np.array([1, 2]), source=np.array([Source.PROMPT, Source.POLICY]),
        loss_mask=np.array([False, trains]), rollout_log_probs=np.array([np.nan, -1.0]),
        kept_log_mass=np.zeros(2), weight_version=np.array([-1, 0]), group_id="g", rollout_id="g/0",
        outcome=outcome,
    )  # fmt: skip


@pytest.mark.parametrize("outcome", list(Outcome))
def test_only_valid_outcomes_take_part(outcome):
    expected = None if outcome.is_valid else Exclusion.INVALID_OUTCOME
    assert exclusion_reason(sample(outcome=outcome)) is expected


def test_a_sample_without_loss_tokens_has_a_typed_reason():
    assert exclusion_reason(sample(trains=False)) is Exclusion.NO_LOSS_TOKENS


def test_a_masked_sample_does_not_train_but_counts_in_its_group():
    cut = sample(outcome=Outcome.TRUNCATED).scored(0.0)
    assert (exclusion_reason(cut), counts_in_group(cut)) == (None, True)
    assert exclusion_reason(cut.masked()) is Exclusion.MASKED
    assert counts_in_group(cut.masked())


def test_other_samples_without_loss_tokens_do_not_count_in_their_group():
    silent = sample(trains=False).scored(0.0)
    without_reward = sample(outcome=Outcome.TRUNCATED).masked()
    failed = sample(outcome=Outcome.ABORTED)
    assert [counts_in_group(s) for s in (silent, without_reward, failed)] == [False] * 3
    assert exclusion_reason(without_reward) is Exclusion.NO_LOSS_TOKENS
