"""The off-policy sequence mask of DeepSeek-V3.2."""

import math

import numpy as np
import pytest
import torch
from helpers.loss_batches import LossBatch
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT

from zerogap.algorithms import off_policy_keep
from zerogap.errors import NumericsError


def keep_of(batch, max_kl, order=None, against="rollout_log_probs"):
    order = np.arange(len(batch.sample)) if order is None else order
    c = {name: torch.tensor(column[order]) for name, column in batch.columns.items()}
    return off_policy_keep(
        c["log_probs"], c[against], c["advantages"], torch.tensor(batch.mask[order]),
        torch.tensor(batch.sample[order]), torch.tensor(batch.len[batch.sample[order]]), max_kl=max_kl,
    ).numpy()  # fmt: skip


def test_the_off_policy_mask_matches_the_loop():
    batch = LossBatch(4, num_samples=30)
    c = batch.columns

    def loop_keep(max_kl, sign=-1.0, against="rollout_log_probs"):
        keep = []
        for t in range(len(batch.sample)):
            mine = [u for u in np.flatnonzero(batch.mask) if batch.sample[u] == batch.sample[t]]
            drops = [c[against][u] - c["log_probs"][u] for u in mine]
            rejected = c["advantages"][t] * sign > 0 and sum(drops) / len(drops) > max_kl
            keep.append(batch.mask[t] and not rejected)
        return np.array(keep)

    found = keep_of(batch, 0.05)
    EXACT.check(found, loop_keep(0.05))
    assert 0 < (batch.mask & ~found).sum() < batch.mask.sum() / 2
    assert_notices("the other sign", lambda: EXACT.check(found, loop_keep(0.05, sign=1.0)))
    assert_notices("another bound", lambda: EXACT.check(found, loop_keep(0.5)))
    from_old = loop_keep(0.05, against="old_log_probs")
    assert_notices("the policy at the start of the step", lambda: EXACT.check(found, from_old))
    order = np.concatenate([np.flatnonzero(batch.sample == r) for r in range(29, -1, -1)])
    EXACT.check(keep_of(batch, 0.05, order), found[order])


def test_a_sample_that_the_policy_has_left_is_dropped_in_the_first_update_too():
    """Two nats a token off the engine that drew it. Against the old log-probs of a first update nothing has moved."""
    batch = LossBatch(5)
    c = batch.columns
    c["log_probs"] = c["old_log_probs"].copy()
    c["rollout_log_probs"] = c["old_log_probs"] + 2.0
    pushed_down = c["advantages"] < 0
    found = keep_of(batch, 1.9)
    EXACT.check(found, batch.mask & ~pushed_down)
    assert 0 < found.sum() < batch.mask.sum()
    EXACT.check(keep_of(batch, 2.1), batch.mask)
    EXACT.check(keep_of(batch, 1e-9, against="old_log_probs"), batch.mask)


def test_the_off_policy_mask_keeps_records_that_are_not_pushed_down():
    """Advantage 0 has no policy term, but a penalty on the KL, which is what brings such a sample back."""
    batch = LossBatch(6)
    batch.columns["advantages"] = np.zeros_like(batch.columns["advantages"])
    EXACT.check(keep_of(batch, 1e-9), batch.mask)
    batch.columns["advantages"] -= 1.0
    assert_notices("all are pushed down", lambda: EXACT.check(keep_of(batch, 1e-9), batch.mask))


def test_the_off_policy_mask_rejects_nothing_of_a_fresh_exact_batch():
    batch = LossBatch(5)
    batch.columns["log_probs"] = batch.columns["rollout_log_probs"].copy()
    EXACT.check(keep_of(batch, 1e-9), batch.mask)


@pytest.mark.parametrize("column", ["log_probs", "rollout_log_probs", "advantages"])
def test_a_nan_that_counts_is_refused(column):
    batch = LossBatch(3)
    batch.columns[column][0] = math.nan
    with pytest.raises(NumericsError, match="of token 0 is nan"):
        keep_of(batch, 0.1)
