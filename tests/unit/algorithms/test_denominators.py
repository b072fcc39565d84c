import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP

from zerogap.algorithms import loss_denominators
from zerogap.errors import DataError

LENGTHS = np.array([3, 0, 17, 5])


@pytest.mark.parametrize(
    ("kind", "constant", "expected"),
    [
        ("token", None, [25.0, np.inf, 25.0, 25.0]),
        ("sample", None, [9.0, np.inf, 51.0, 15.0]),
        ("constant", 64, [192.0, np.inf, 192.0, 192.0]),
    ],
)
def test_a_record_without_tokens_counts_in_no_denominator(kind, constant, expected):
    found = loss_denominators(LENGTHS, kind=kind, constant=constant)
    EXACT.check(found, np.array(expected))


@pytest.mark.parametrize("kind", ["group", "rollout"])
def test_records_that_share_an_id_share_a_denominator(kind):
    found = loss_denominators(
        np.array([3, 0, 17, 5, 0]), kind=kind, shared_ids=["a", "b", "b", "a", "c"]
    )
    # a has 8 tokens, b has 17, and c has none, so it does not count as a group.
    EXACT.check(found, np.array([16.0, np.inf, 34.0, 16.0, np.inf]))


def trl_shares(lengths, is_masked, kind, constant):
    """A token's share of the loss by TRL's formulas: ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean() and its others."""
    shares = []
    for length, masked in zip(lengths, is_masked, strict=True):
        if masked:
            continue
        kept = [n for n, m in zip(lengths, is_masked, strict=True) if not m]
        own = {
            "sample": length * len(lengths),
            "token": sum(kept),
            "constant": len(lengths) * (constant or 0),
        }
        shares.append(1 / own[kind])
    return np.array(shares)


@pytest.mark.parametrize(("kind", "constant"), [("sample", None), ("token", None), ("constant", 64)])  # fmt: skip
def test_a_masked_sample_counts_in_denominators_as_in_trl(kind, constant):
    lengths, is_masked = np.array([3, 9, 17, 5]), np.array([False, True, False, False])
    expected = trl_shares(lengths.tolist(), is_masked.tolist(), kind, constant)

    def check(is_counted_B):
        found = loss_denominators(
            np.where(is_masked, 0, lengths), kind=kind, constant=constant, is_counted_B=is_counted_B
        )
        assert found[1] == np.inf
        FLOAT64_SAME_OP.check(torch.from_numpy(1 / found[~is_masked]), torch.from_numpy(expected))

    check(np.ones(4, bool))
    if kind != "token":
        assert_notices("a masked sample that does not count", lambda: check(None))


def test_a_group_or_rollout_that_is_masked_as_a_whole_still_counts():
    ids, counted = ["a", "b", "b", "a", "c"], np.array([True, False, True, True, True])
    for kind in ("group", "rollout"):
        found = loss_denominators(
            np.array([3, 0, 17, 5, 0]), kind=kind, shared_ids=ids, is_counted_B=counted
        )
        # Three groups: a with 8 tokens, b with 17, and c, which is masked.
        EXACT.check(found, np.array([24.0, np.inf, 51.0, 24.0, np.inf]))


@pytest.mark.parametrize("shared_ids", [None, ["a"]])
def test_a_shared_denominator_needs_the_ids(shared_ids):
    with pytest.raises(DataError, match="for 4 samples: it needs the group id of each"):
        loss_denominators(LENGTHS, kind="group", shared_ids=shared_ids)


def test_groups_of_one_record_are_records():
    EXACT.check(
        loss_denominators(LENGTHS, kind="group", shared_ids=list("abcd")),
        loss_denominators(LENGTHS, kind="sample"),
    )


def test_a_batch_without_trainable_tokens_is_refused():
    with pytest.raises(DataError, match="none of the 2 samples"):
        loss_denominators(np.zeros(2, int), kind="token")


@pytest.mark.parametrize(("kind", "constant"), [("constant", None), ("constant", 0), ("token", 5)])
def test_a_constant_goes_with_its_kind_and_no_other(kind, constant):
    with pytest.raises(DataError, match="constant"):
        loss_denominators(LENGTHS, kind=kind, constant=constant)
