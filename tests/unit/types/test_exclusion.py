import numpy as np
import pytest

from zerogap.types import Exclusion, Outcome, Sample, Source, exclusion_reason


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
