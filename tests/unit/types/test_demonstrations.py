from dataclasses import replace

import numpy as np
import pytest
from helpers.planted_fault import assert_notices

from zerogap.errors import DataError
from zerogap.types import Outcome, Sample, Source


def demonstration(**changes) -> Sample:
    given = {"group_id": "g", "rollout_id": "g/0", "text": "b"} | changes
    return Sample.demonstration((256, 97), (98, 257), **given)


def check_trains_exactly_the_answer(sample):
    assert sample.loss_mask.tolist() == [s == Source.DEMONSTRATION for s in sample.source]
    assert sample.num_loss_tokens == 2


def test_a_reference_answer_trains_without_having_been_sampled():
    sample = demonstration()
    check_trains_exactly_the_answer(sample)
    assert sample.token_ids.tolist() == [256, 97, 98, 257]
    assert [(turn.start, turn.end) for turn in sample.turns] == [(2, 4)]
    assert sample.is_demonstration
    assert sample.outcome is Outcome.COMPLETED
    assert sample.turns[-1].finish_reason.matched == 257
    assert sample.reward is None
    assert np.isnan(sample.rollout_log_probs).all()
    assert (sample.weight_version == -1).all()
    masked = replace(sample, loss_mask=np.zeros(4, bool))
    assert_notices("an answer left out", lambda: check_trains_exactly_the_answer(masked))


def test_an_answer_without_tokens_is_refused():
    with pytest.raises(DataError, match="without tokens cannot be trained on; give at least"):
        Sample.demonstration((1,), (), group_id="g", rollout_id="g/0")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"weight_version": np.array([-1, -1, 0, -1])}, "reference answer with a weight version"),
        ({"rollout_log_probs": np.array([np.nan, np.nan, -1, np.nan])}, "not sampled but has"),
        ({"loss_mask": np.array([0, 1, 1, 1], bool)}, "the policy did not sample"),
        ({"source": np.array([0, 0, 3, Source.POLICY])}, "the policy did not sample"),
        ({"source": np.array([0, 0, 3, Source.ENVIRONMENT])}, "the policy did not sample"),
    ],
)
def test_nothing_else_may_train_or_claim_to_be_sampled(changes, problem):
    with pytest.raises(DataError, match=rf"g/0: .*{problem}.* \(first at position \d.*\); "):
        replace(demonstration(), **changes)


def test_a_sampled_token_still_needs_its_log_prob():
    sampled = {"weight_version": np.array([-1, -1, 0, 0]), "source": np.array([0, 0, 1, 1])}
    with pytest.raises(DataError, match="a sampled token without a finite rollout log-prob"):
        replace(demonstration(), **sampled)


def test_a_failed_demonstration_trains_nothing():
    failed = demonstration(reward=1.0).failed(Outcome.TAMPERED, "ids")
    assert failed.num_loss_tokens == 0
    assert failed.reward is None
