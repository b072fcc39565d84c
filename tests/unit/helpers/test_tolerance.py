import numpy as np
import pytest
import torch
from helpers.planted_fault import FaultNotNoticed, assert_notices, nudged, planted_fault, scaled
from helpers.tolerance import EXACT, FP32_MODEL, FP32_SAME_OP, GRADIENT, GRADIENT_NORM


def test_exact_notices_one_unit_in_the_last_place():
    x = torch.randn(3, 4)
    EXACT.check(x.clone(), x)
    assert_notices("one ulp", lambda: EXACT.check(nudged(x), x))


def test_exact_treats_nan_in_the_same_place_as_equal():
    x = np.array([np.nan, 1.0], np.float32)
    EXACT.check(x.copy(), x)
    with planted_fault("NaN moved"):
        EXACT.check(x[::-1].copy(), x)


def test_exact_refuses_another_dtype_or_shape():
    with pytest.raises(AssertionError, match="dtype"):
        EXACT.check(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    with pytest.raises(AssertionError, match="shape"):
        EXACT.check(torch.zeros(1), torch.zeros(4))


def test_a_message_names_the_worst_element():
    x = torch.zeros(2, 3)
    y = x.clone()
    y[1, 2] = 0.5
    with pytest.raises(AssertionError, match=r"worst at \(1, 2\): got 0.5, expected 0.0"):
        FP32_MODEL.check(y, x)


def test_mean_difference_counts_even_when_each_element_is_allowed():
    x = torch.zeros(100)
    one_off = x.clone()
    one_off[3] = 2.9e-5
    FP32_MODEL.check(one_off, x)
    assert_notices("a bias of nearly the limit", lambda: FP32_MODEL.check(x + 2.9e-5, x))


def test_infinities_must_be_in_the_same_places():
    x = torch.tensor([-torch.inf, 1.0])
    FP32_SAME_OP.check(x.clone(), x)
    assert_notices("-inf became a number", lambda: FP32_SAME_OP.check(torch.tensor([-1e4, 1.0]), x))
    assert_notices(
        "-inf became +inf", lambda: FP32_SAME_OP.check(torch.tensor([torch.inf, 1.0]), x)
    )
    assert_notices(
        "a number became NaN", lambda: FP32_SAME_OP.check(torch.tensor([-torch.inf, torch.nan]), x)
    )


def test_gradients_are_relative_to_the_largest_element():
    gradient = torch.tensor([1e3, 1e-6])
    GRADIENT.check(gradient + torch.tensor([0.0, 4e-4]), gradient)
    assert_notices("one element scaled", lambda: GRADIENT.check(scaled(gradient), gradient))


def test_mappings_and_lists_are_compared_by_key():
    expected = {"a": torch.ones(2), "b": [np.ones(3), 1.0]}
    FP32_MODEL.check({"a": torch.ones(2), "b": [np.ones(3), 1.0]}, expected)
    with pytest.raises(AssertionError, match=r"\.b\[1\]"):
        FP32_MODEL.check({"a": torch.ones(2), "b": [np.ones(3), 1.1]}, expected)


def test_a_fault_that_is_not_noticed_is_an_error():
    with pytest.raises(FaultNotNoticed, match="nothing"), planted_fault("nothing"):
        FP32_MODEL.check(1.0, 1.0)


def test_a_norm_is_of_each_tensor_by_itself_however_small_it_is():
    gradient = {"a": torch.tensor([3e5, 0.0]), "b": torch.tensor([4.0, 1e-9]), "c": torch.zeros(2)}
    GRADIENT_NORM.check(gradient | {"b": torch.tensor([4.0, 3e-6])}, gradient)
    for what, other in {
        "a small tensor": {"b": torch.tensor([4.00001, 0.0])},
        "a tensor of zeros": {"c": torch.tensor([0.0, 1e-30])},
        "NaN": {"b": torch.tensor([torch.nan, 0.0])},
        "a shape": {"b": torch.tensor([4.0])},
    }.items():
        with planted_fault(what):
            GRADIENT_NORM.check(gradient | other, gradient)


def test_in_a_large_tensor_one_element_may_not_have_all_of_the_norm():
    gradient = torch.ones(10_000)
    GRADIENT_NORM.check(gradient + 8e-7 * torch.randn(10_000).sign(), gradient)
    one = gradient.clone()
    one[7] += 5e-6
    assert (one - gradient).norm() < 1e-7 * gradient.norm()
    with planted_fault("one element"):
        GRADIENT_NORM.check(one, gradient)
