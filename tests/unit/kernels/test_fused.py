import pytest
import torch
from helpers.kernel_paths import values_and_gradients
from helpers.planted_fault import assert_notices, scaled
from helpers.tolerance import EXACT

from zerogap.kernels import linear, norm_linear, rms_norm, swiglu, swiglu_linear

pytestmark = pytest.mark.usefixtures("path")


@pytest.mark.parametrize("has_bias", [False, True])
def test_norm_and_projection_together_have_the_bits_of_one_after_the_other(has_bias):
    inputs = [torch.randn(13, 20), torch.rand(20) + 0.5, torch.randn(12, 20)]
    inputs += [torch.randn(12)] * has_bias
    fused = values_and_gradients(
        lambda x, norm, weight, *bias: norm_linear(x, norm, weight, *bias, eps=1e-5), inputs
    )
    apart = values_and_gradients(
        lambda x, norm, weight, *bias: linear(rms_norm(x, norm, 1e-5), weight, *bias), inputs
    )
    EXACT.check(fused, apart)
    assert_notices("one gradient", lambda: EXACT.check(scaled(fused[1][1]), apart[1][1]))


def test_swiglu_and_projection_together_have_the_bits_of_one_after_the_other():
    inputs = [torch.randn(13, 24), torch.randn(20, 12)]
    fused = values_and_gradients(swiglu_linear, inputs)
    EXACT.check(fused, values_and_gradients(lambda x, w: linear(swiglu(x), w), inputs))
    assert_notices(
        "one input", lambda: EXACT.check(swiglu_linear(scaled(inputs[0]), inputs[1]), fused[0][0])
    )


def test_without_autograd_the_bits_are_the_same():
    x, norm, weight = torch.randn(3, 20), torch.rand(20), torch.randn(12, 20)
    with_grad = norm_linear(x, norm, weight.requires_grad_(), eps=1e-5).detach()
    with torch.no_grad():
        EXACT.check(norm_linear(x, norm, weight, eps=1e-5), with_grad)


def test_frozen_weights_get_no_gradient_and_the_input_still_does():
    x = torch.randn(3, 24, requires_grad=True)
    norm_linear(x, torch.ones(24), torch.randn(5, 24), torch.randn(5), eps=1e-5).sum().backward()
    assert x.grad.abs().sum() > 0
    x.grad = None
    swiglu_linear(x, torch.randn(5, 12)).sum().backward()
    assert x.grad.abs().sum() > 0
