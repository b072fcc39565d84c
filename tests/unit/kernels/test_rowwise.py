import pytest
import torch
from helpers.kernel_paths import as_tuple, doubled, values_and_gradients
from helpers.planted_fault import assert_notices, planted_fault, scaled
from helpers.tolerance import EXACT, FLOAT64_REFERENCE, FP32_MODEL_GRADIENT, FP32_SAME_OP

from zerogap.errors import KernelError
from zerogap.kernels import qkv_rope, rms_norm, rope_tables, swiglu

pytestmark = pytest.mark.usefixtures("path")


def check_against_float64(kernel, formula, inputs):
    """Values and gradients, and that one wrong number is noticed in each."""
    values, gradients = values_and_gradients(kernel, inputs)
    expected, expected_gradients = values_and_gradients(formula, doubled(inputs))
    FLOAT64_REFERENCE.check(values, expected)
    FP32_MODEL_GRADIENT.check(gradients, expected_gradients)
    for i, x in enumerate(inputs):
        with planted_fault(f"input {i}"):
            FLOAT64_REFERENCE.check(
                as_tuple(kernel(*inputs[:i], scaled(x), *inputs[i + 1 :])), expected
            )
        with planted_fault(f"gradient {i}"):
            FP32_MODEL_GRADIENT.check(scaled(gradients[i]), expected_gradients[i])


def rms_norm_formula(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


@pytest.mark.parametrize("width", [1, 15, 16, 33, 100])
def test_rms_norm_is_its_formula(width):
    inputs = [torch.randn(5, width), 1 + 0.3 * torch.randn(width)]
    if width == 1:  # x / |x|: the gradient is rounding
        inputs[0] = 1e-3 * inputs[0]
    check_against_float64(lambda x, w: rms_norm(x, w, 1e-5), rms_norm_formula, inputs)


def swiglu_formula(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return gate / (1 + (-gate).exp()) * up


@pytest.mark.parametrize("width", [1, 7, 16, 50])
def test_swiglu_is_its_formula(width):
    check_against_float64(swiglu, swiglu_formula, [3 * torch.randn(4, 2 * width)])


def test_swiglu_of_a_large_gate_is_the_gate_or_nothing_with_finite_gradients():
    gate = torch.tensor([[-1e30, -1000.0, -100.0, -88.5, 0.0, 100.0, 1000.0]])
    values, (gradient,) = values_and_gradients(
        lambda gate: swiglu(torch.cat([gate, torch.ones_like(gate)], 1)), [gate]
    )
    FP32_SAME_OP.check(values[0][0, 3:], gate[0, 3:].clamp(min=0))
    assert (values[0][0, :3].abs() < 1e-6).all()
    assert gradient.isfinite().all()


def rope_formula(qkv, cos, sin, *norms, heads):
    num_heads, num_kv_heads = heads
    q, k, v = qkv.view(len(qkv), -1, 2 * cos.shape[1]).split(
        [num_heads, num_kv_heads, num_kv_heads], 1
    )
    if norms:
        q, k = rms_norm_formula(q, norms[0]), rms_norm_formula(k, norms[1])

    def turn(x):  # as complex numbers: (first half) + i (second half)
        first, second = x.chunk(2, -1)
        turned = torch.complex(first, second) * torch.complex(cos, sin)[:, None]
        return torch.cat([turned.real, turned.imag], -1)

    return turn(q), turn(k), v


@pytest.mark.parametrize("head_dim", [2, 14, 48])
@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("heads", [(6, 2), (7, 1)])
def test_qkv_rope_is_a_rotation_of_normed_heads(head_dim, has_norm, heads):
    qkv = torch.randn(3, (heads[0] + 2 * heads[1]) * head_dim)
    cos, sin = rope_tables(torch.rand(head_dim // 2), torch.tensor([0, 5, 1000]))
    norms = [1 + 0.3 * torch.randn(head_dim) for _ in range(2 * has_norm)]

    def kernel(qkv, *norms):
        q_norm, k_norm = norms or (None, None)
        return qkv_rope(
            qkv, cos, sin, q_norm, k_norm, num_heads=heads[0], num_kv_heads=heads[1], eps=1e-5
        )

    def formula(qkv, *norms):
        return rope_formula(qkv, cos.double(), sin.double(), *norms, heads=heads)

    check_against_float64(kernel, formula, [qkv, *norms])


def test_qkv_rope_gives_contiguous_heads():
    cos, sin = rope_tables(torch.rand(8), torch.arange(3))
    for x in qkv_rope(
        torch.randn(3, 64), cos, sin, None, None, num_heads=2, num_kv_heads=1, eps=1e-5
    ):
        assert x.is_contiguous()


def test_rope_tables_are_cosines_of_the_rounded_angle():
    inv_freq, positions = torch.rand(24), torch.tensor([0, 1, 77, 4095, 131072])
    cos, sin = rope_tables(inv_freq, positions)
    # The angle is rounded to float32 first, as in every model that was trained with it.
    angle = (positions.float()[:, None] * inv_freq).double()
    FLOAT64_REFERENCE.check((cos, sin), (angle.cos(), angle.sin()))
    assert_notices(
        "position off by one", lambda: FLOAT64_REFERENCE.check(cos, (angle + inv_freq).cos())
    )


def test_no_rows_give_no_rows():
    cos, sin = rope_tables(torch.rand(8), torch.zeros(0, dtype=torch.int64))
    assert cos.shape == sin.shape == (0, 8)
    assert rms_norm(torch.zeros(0, 20), torch.ones(20), 1e-5).shape == (0, 20)
    assert swiglu(torch.zeros(0, 20)).shape == (0, 10)
    q, k, v = qkv_rope(
        torch.zeros(0, 64), cos, sin, None, None, num_heads=2, num_kv_heads=1, eps=1e-5
    )
    assert (q.shape, k.shape, v.shape) == ((0, 2, 16), (0, 1, 16), (0, 1, 16))


@pytest.mark.parametrize("place", [0, 9, 19])
def test_nan_reaches_every_output_that_it_enters_and_no_other_row(place):
    x = torch.randn(3, 20)
    x[1, place] = torch.nan
    normed, gated = rms_norm(x, torch.ones(20), 1e-5), swiglu(x)
    cos, sin = rope_tables(torch.rand(2), torch.arange(3))
    q, k, v = qkv_rope(x, cos, sin, None, None, num_heads=3, num_kv_heads=1, eps=1e-5)
    assert normed[1].isnan().all()
    assert gated[1, place % 10].isnan()
    assert torch.cat([q, k, v], 1)[1].isnan().any()
    for out in (normed, gated, q, k, v):
        assert out[[0, 2]].isfinite().all()


def test_without_autograd_the_bits_are_the_same():
    """The engine runs without gradients, the trainer with them."""
    x, norm = torch.randn(5, 96), torch.rand(16)
    cos, sin = rope_tables(torch.rand(8), torch.arange(5))

    def everything():
        qkv = qkv_rope(x, cos, sin, norm, norm, num_heads=4, num_kv_heads=1, eps=1e-5)
        return [rms_norm(x, torch.ones(96), 1e-5), swiglu(x), *qkv]

    with_grad = everything()
    with torch.no_grad():
        EXACT.check(everything(), with_grad)


def test_a_strided_row_tensor_of_rms_norm_is_read_rightly():
    x, weight = torch.randn(4, 40), torch.ones(20)
    EXACT.check(rms_norm(x[:, ::2], weight, 1e-5), rms_norm(x[:, ::2].contiguous(), weight, 1e-5))


def test_a_weight_of_another_width_or_dtype_is_refused(path):
    if path != "cpu":
        pytest.skip("torch itself refuses or promotes")
    with pytest.raises(KernelError, match=r"shape \(3,\).*reads contiguous .*shape \(4,\)"):
        rms_norm(torch.zeros(2, 4), torch.zeros(3), 1e-5)
    with pytest.raises(KernelError, match=r"torch\.float64 tensor of shape \(4,\)"):
        rms_norm(torch.zeros(2, 4), torch.zeros(4, dtype=torch.float64), 1e-5)
    with pytest.raises(KernelError, match=r"shape \(4, 6\), strides \(1, 4\)"):
        swiglu(torch.zeros(6, 4).t())
