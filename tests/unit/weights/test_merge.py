"""An update that is merged onto a coarse grid: what is lost is said, and the base is never lost."""

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT, FLOAT64_REFERENCE

from zerogap.errors import WeightSyncError
from zerogap.kernels import round_bf16
from zerogap.weights import MergedWeight, low_rank_delta, merge_delta, unrounded


def near_one(seed: int = 0) -> torch.Tensor:
    """A base on the bf16 grid with elements around 1, where the next number is 2**-7 away."""
    generator = torch.Generator().manual_seed(seed)
    return round_bf16(1.0 + 0.02 * torch.randn(24, 16, generator=generator))


def update(size: float, seed: int = 1) -> torch.Tensor:
    """Rank 4, elements of about ``size``."""
    generator = torch.Generator().manual_seed(seed)
    b_OR, a_RI = (torch.randn(*shape, generator=generator) for shape in ((24, 4), (4, 16)))
    return low_rank_delta(b_OR, a_RI, scale=size / 2)


def slow_lost_share(base, delta) -> float:
    lost = total = 0.0
    for b, d in zip(base.flatten().tolist(), delta.flatten().tolist(), strict=True):
        merged = float(torch.tensor(b + d, dtype=torch.float64).float().bfloat16())
        lost, total = lost + (merged - (b + d)) ** 2, total + d**2
    return (lost / total) ** 0.5


@pytest.mark.parametrize("size", [1e-3, 1e-2, 0.3])
def test_the_lost_share_is_that_of_a_float64_loop(size):
    base, delta = near_one(), update(size)
    _, loss = merge_delta(base, delta, rounding=round_bf16)
    FLOAT64_REFERENCE.check(loss.lost_share, slow_lost_share(base, delta))
    with planted_fault("the loss is measured against another update"):
        FLOAT64_REFERENCE.check(loss.lost_share, slow_lost_share(base, delta * 1.01))


def test_an_update_below_the_grid_is_lost_almost_whole_and_one_above_it_is_not():
    base = near_one()
    _, small = merge_delta(base, update(5e-4), rounding=round_bf16)
    _, large = merge_delta(base, update(0.3), rounding=round_bf16)
    assert small.lost_share > 0.9
    assert small.num_unmoved > 0.8 * small.num_elements
    assert large.lost_share < 0.02
    assert large.num_unmoved < 0.05 * large.num_elements


def test_without_rounding_a_merge_loses_what_fp32_addition_does():
    _, loss = merge_delta(near_one(), update(1e-3), rounding=unrounded)
    assert 0 < loss.lost_share < 1e-4
    assert loss.num_unmoved <= 2, "only elements whose update is below fp32 itself stay"


def test_an_update_of_nothing_loses_nothing():
    base = near_one()
    merged, loss = merge_delta(base, torch.zeros_like(base), rounding=round_bf16)
    EXACT.check(merged, base)
    assert (loss.lost_share, loss.num_unmoved) == (0.0, 0)


def test_a_base_stored_in_bf16_gives_the_values_of_one_stored_in_fp32():
    base, delta = near_one(), update(0.01)
    stored, loss = merge_delta(base.bfloat16(), delta, rounding=round_bf16)
    EXACT.check(stored.float(), merge_delta(base, delta, rounding=round_bf16)[0])
    assert stored.dtype == torch.bfloat16
    assert loss == merge_delta(base, delta, rounding=round_bf16)[1]


def test_merging_and_unmerging_a_hundred_times_gives_the_base_back_bit_for_bit():
    weight, place = near_one(), near_one()
    merged = MergedWeight(weight, rounding=round_bf16)
    address = weight.data_ptr()
    for round_ in range(100):
        delta = update(0.01, seed=round_)
        loss = merged.merge(delta)
        EXACT.check(weight, merge_delta(place, delta, rounding=round_bf16)[0])
        assert loss.lost_share > 0
        merged.unmerge()
        EXACT.check(weight, place)
    assert weight.data_ptr() == address
    with planted_fault("unmerging subtracts"):
        for round_ in range(100):
            delta = update(0.01, seed=round_)
            weight.copy_(round_bf16(round_bf16(weight + delta) - delta))
        EXACT.check(weight, place)


def test_a_second_merge_replaces_the_first():
    weight, base = near_one(), near_one()
    merged = MergedWeight(weight, rounding=round_bf16)
    merged.merge(update(0.3, seed=1))
    merged.merge(update(0.01, seed=2))
    EXACT.check(weight, merge_delta(base, update(0.01, seed=2), rounding=round_bf16)[0])


def test_an_update_that_would_broadcast_is_refused():
    with pytest.raises(WeightSyncError, match=r"float32 \[16\] cannot be merged .* \[24, 16\]"):
        merge_delta(near_one(), torch.ones(16), rounding=round_bf16)
