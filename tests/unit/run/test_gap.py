import numpy as np
import pytest

from zerogap.errors import NumericsError
from zerogap.run.gap import gap_metrics
from zerogap.types import Sample


def sample(log_probs, kept=None, mask=None):
    count = len(log_probs)
    return Sample(
        token_ids=np.arange(count + 1),
        source=np.array([0, *[1] * count]),
        loss_mask=np.array([False, *(mask or [True] * count)]),
        rollout_log_probs=np.array([np.nan, *log_probs]),
        kept_log_mass=np.array([0.0, *(kept or [0.0] * count)]),
        weight_version=np.array([-1, *[0] * count]),
        group_id="g",
        rollout_id="g/0",
    )


def test_equal_log_probs_give_exactly_zero():
    metrics = gap_metrics([sample([-1.25, -0.1])], [np.array([np.nan, -1.25, -0.1], np.float32)])
    assert metrics["gap/total/max"] == 0.0
    assert metrics["gap/num_tokens"] == 2


def test_one_ulp_is_not_zero():
    engine = np.float32(-1.25)
    metrics = gap_metrics(
        [sample([engine])], [np.array([np.nan, np.nextafter(engine, np.float32(0))])]
    )
    assert metrics["gap/numbers/open/max"] > 0


def test_sources_add_up_to_the_total():
    # In the set: -1 + 0.3 = -0.7; whole vocabulary: -1; trainer: -1.1.
    metrics = gap_metrics([sample([-1.0], kept=[-0.3])], [np.array([np.nan, -1.1])])
    assert metrics["gap/sampling/open/mean"] == pytest.approx(0.3)
    assert metrics["gap/numbers/open/mean"] == pytest.approx(0.1)
    assert metrics["gap/total/signed_mean"] == pytest.approx(-0.4)


def test_tokens_that_do_not_train_are_not_measured():
    metrics = gap_metrics(
        [sample([-1.0, -2.0], mask=[True, False])], [np.array([np.nan, -1.0, np.nan], np.float32)]
    )
    assert metrics["gap/num_tokens"] == 1


def test_a_step_without_trained_tokens_has_no_gap():
    assert gap_metrics([sample([-1.0])], [np.array([np.nan, np.nan])]) == {}


def test_an_infinite_log_prob_of_the_trainer_is_no_silent_hole():
    with pytest.raises(NumericsError):
        gap_metrics([sample([-1.0])], [np.array([np.nan, -np.inf])])
