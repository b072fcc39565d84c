from dataclasses import replace

import numpy as np
import pytest
from helpers.train_batches import make_sample

from zerogap.errors import NumericsError
from zerogap.ledger import trained_gap

NAN = np.nan


def of(log_probs, trainer, **changes):
    sample = make_sample([1], [2] * len(log_probs), rollout_log_probs=log_probs, **changes)
    return trained_gap([sample], [np.array([NAN, *trainer], np.float32)])


def test_equal_log_probs_give_exactly_zero():
    assert of([-1.25, -0.1], [-1.25, -0.1]) == {
        "gap/trained/mean": 0.0,
        "gap/trained/max": 0.0,
        "gap/trained/num_tokens": 2.0,
    }


def test_one_ulp_is_not_zero():
    engine = np.float32(-1.25)
    assert of([engine], [np.nextafter(engine, np.float32(0))])["gap/trained/max"] > 0


def test_tokens_that_the_trainer_did_not_score_do_not_count():
    assert of([-1.0, -2.0], [-1.5, NAN])["gap/trained/num_tokens"] == 1
    assert of([-1.0, -2.0], [NAN, NAN]) == {}


def test_an_infinite_log_prob_of_the_trainer_is_no_silent_hole():
    with pytest.raises(NumericsError):
        of([-1.0], [-np.inf])


def test_the_engines_side_is_within_its_kept_set():
    """As a0 of the ledger: what the engine drew from, so that a truncation counts as a gap here too."""
    sample = make_sample([1, 2], [3, 4], rollout_log_probs=[-1.0, -2.0])
    sample = replace(sample, kept_log_mass=[0.0, 0.0, -0.25, 0.0])
    assert trained_gap([sample], [sample.rollout_log_probs])["gap/trained/max"] == 0.25
