"""The entropy's gradient and the sum of squared probabilities, against float64."""

import math

import pytest
import torch
from helpers.kernel_paths import doubled, values_and_gradients
from helpers.planted_fault import planted_fault, scaled
from helpers.tolerance import EXACT, FP32_MODEL_GRADIENT, FP32_SAME_OP

from zerogap.kernels import (
    VOCAB_CHUNK,
    Head,
    backend_of,
    log_probs,
    log_probs_with_squares,
)
from zerogap.kernels.native import native

pytestmark = pytest.mark.usefixtures("path")

VOCABULARIES = [2, 17, 259, VOCAB_CHUNK, VOCAB_CHUNK + 1, 2 * VOCAB_CHUNK + 40]


def random_head(num_rows, vocab, width=12, *, padding=0):
    hidden = torch.randn(num_rows, width)
    head = torch.randn(vocab + padding, width)
    target = torch.randint(vocab, (num_rows,))
    temperature = torch.tensor([0.3, 0.6, 1.0, 1.7])[torch.arange(num_rows) % 4]
    return hidden, head, target, temperature


def log_softmax_64(hidden, head, temperature, vocab):
    return (hidden.double() @ head[:vocab].double().T / temperature.double()[:, None]).log_softmax(
        -1
    )


def entropy_64(hidden, head, temperature, vocab):
    return torch.special.entr(log_softmax_64(hidden, head, temperature, vocab).exp()).sum(-1)


def entropy_gradient_by_loop(logits, temperature):
    """dH/dz_v = -p_v (log p_v + H) / T of one row, in Python floats."""
    scaled_V = [z / temperature for z in logits]
    lse = math.log(sum(math.exp(z) for z in scaled_V))
    entropy = -sum(math.exp(z - lse) * (z - lse) for z in scaled_V)
    return [-math.exp(z - lse) * (z - lse + entropy) / temperature for z in scaled_V]


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_the_entropys_own_gradient_is_that_of_float64(vocab):
    hidden, head, target, temperature = random_head(5, vocab, padding=3)

    def kernel(hidden, head):
        return log_probs(hidden, Head(head, vocab), target, temperature)[1]

    values, gradients = values_and_gradients(kernel, [hidden, head])
    expected, expected_gradients = values_and_gradients(
        lambda hidden, head: entropy_64(hidden, head, temperature, vocab), doubled([hidden, head])
    )
    FP32_SAME_OP.check(values, expected)
    FP32_MODEL_GRADIENT.check(gradients, expected_gradients)
    EXACT.check(gradients[1][vocab:], torch.zeros(3, 12))
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        with planted_fault("one gradient"):
            FP32_MODEL_GRADIENT.check(scaled(ours), theirs)
    with planted_fault("a temperature"):
        _, wrong = values_and_gradients(
            lambda hidden, head: entropy_64(hidden, head, temperature * 1.01, vocab), doubled([hidden, head])
        )  # fmt: skip
        FP32_MODEL_GRADIENT.check(gradients, wrong)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_a_chunks_gradient_is_the_formula_of_each_logit(temperature):
    logits = torch.randn(1, 37) * 2
    (row,) = logits.tolist()
    scaled_V = logits.double()[0] / temperature
    lse, entropy = scaled_V.logsumexp(0), torch.special.entr(scaled_V.softmax(0)).sum()
    per_row = [x.float().view(1) for x in (torch.tensor(temperature), lse)]
    found, zero = logits.clone(), torch.zeros(1)
    backend_of(logits).logits_gradient_(
        found, *per_row, zero, (entropy.float().view(1), torch.ones(1))
    )
    expected = entropy_gradient_by_loop(row, temperature)
    FP32_SAME_OP.check(found[0], expected)
    with planted_fault("the entropy is left out"):
        without = logits.clone()
        backend_of(logits).logits_gradient_(without, *per_row, zero, (zero, torch.ones(1)))
        FP32_SAME_OP.check(without[0], expected)


def gradients_for(inputs, weights):
    """Gradients of hidden and head for these weights of log-prob and entropy; None leaves an output out of the loss."""
    hidden, head, target, temperature = inputs
    hidden, head = (x.clone().requires_grad_() for x in (hidden, head))
    outputs = log_probs(hidden, Head(head, len(head)), target, temperature)
    loss = sum((out * w).sum() for out, w in zip(outputs, weights, strict=True) if w is not None)
    return list(torch.autograd.grad(loss, [hidden, head]))


def test_an_entropy_outside_the_loss_adds_no_work_and_no_bit(monkeypatch):
    inputs, weight = random_head(9, VOCAB_CHUNK + 33), torch.randn(9)
    backend, asked = backend_of(torch.ones(1)), []
    honest = backend.logits_gradient_

    def watched(*tensors):
        asked.append(tensors[4] is not None)
        honest(*tensors)

    monkeypatch.setattr(backend, "logits_gradient_", watched)
    alone = gradients_for(inputs, [weight, None])
    assert asked == [False, False]
    EXACT.check(gradients_for(inputs, [weight, torch.zeros(9)]), alone)
    assert asked == [False, False, True, True]
    with planted_fault("a weight of the entropy"):
        EXACT.check(gradients_for(inputs, [weight, torch.full((9,), 1e-3)]), alone)


def test_both_gradients_add_up():
    inputs, weight, bonus = random_head(9, VOCAB_CHUNK + 33), torch.randn(9), torch.randn(9)
    alone = gradients_for(inputs, [weight, None]), gradients_for(inputs, [None, bonus])
    together = gradients_for(inputs, [weight, bonus])
    FP32_MODEL_GRADIENT.check(together, [a + b for a, b in zip(*alone, strict=True)])
    with planted_fault("the entropy's sign"):
        FP32_MODEL_GRADIENT.check(together, [a - b for a, b in zip(*alone, strict=True)])


SOME_ROWS = ([0], [12, 4, 5, 6], [7, 7, 1])


def test_a_rows_gradient_of_a_chunk_does_not_depend_on_the_rows_beside_it():
    logits, columns = torch.randn(13, 133), [*(torch.rand(5, 13) + 0.5)]

    def gradient(rows):
        chunk, (temperature, lse, grad, *entropy) = logits[rows], [c[rows] for c in columns]
        backend_of(chunk).logits_gradient_(chunk, temperature, lse, grad, tuple(entropy))
        return chunk

    every = gradient(torch.arange(13))
    for rows in SOME_ROWS:
        EXACT.check(gradient(rows), every[rows])
    with planted_fault("another row"):
        EXACT.check(gradient(rows), every[[7, 7, 2]])


def test_a_rows_gradient_does_not_depend_on_the_rows_beside_it(path):
    if path != "cpu" or not native.has_gemm:
        pytest.skip("a BLAS computes the gradient of a GEMM's input")
    inputs, weights = random_head(13, VOCAB_CHUNK + 70), torch.randn(2, 13)
    every, _ = gradients_for(inputs, weights)
    hidden, head, target, temperature = inputs
    for rows in SOME_ROWS:
        few, _ = gradients_for(
            (hidden[rows], head, target[rows], temperature[rows]), weights[:, rows]
        )
        EXACT.check(few, every[rows])
    with planted_fault("another row"):
        EXACT.check(few, every[[7, 7, 2]])


def test_extreme_rows_have_finite_gradients():
    """One certain id; ids without probability; equal logits, whose entropy is the largest there is."""
    hidden = torch.eye(3).requires_grad_()
    columns = [[200.0, -200.0, 0.0, 1.0], [0.0, -torch.inf, 1.0, -torch.inf], [5.0, 5.0, 5.0, 5.0]]
    backend, lse = backend_of(torch.ones(1)), torch.tensor(columns).logsumexp(1)
    entropy = torch.special.entr(torch.tensor(columns).softmax(1)).sum(1)
    found = torch.tensor(columns)
    backend.logits_gradient_(found, torch.ones(3), lse, torch.zeros(3), (entropy, torch.ones(3)))
    assert found.isfinite().all()
    FP32_SAME_OP.check(found[0], [0.0] * 4)
    FP32_SAME_OP.check(found[1, [1, 3]], [0.0, 0.0])
    FP32_SAME_OP.check(found[1, [0, 2]], entropy_gradient_by_loop([0.0, 1.0], 1.0))
    FP32_SAME_OP.check(found[2], [0.0] * 4)
    head = torch.tensor([[200.0, 3.0, 5.0], [-200.0, 1.0, 5.0]], requires_grad=True)
    _, entropy = log_probs(hidden, Head(head, 2), torch.zeros(3, dtype=torch.int64), torch.ones(3))
    entropy.sum().backward()
    assert hidden.grad.isfinite().all()
    assert head.grad.isfinite().all()


def test_a_nan_row_leaves_the_gradients_of_others():
    hidden, head, target, temperature = random_head(6, 40)
    clean, _ = gradients_for((hidden, head, target, temperature), torch.ones(2, 6))
    dirty_hidden = hidden.clone()
    dirty_hidden[2] = torch.nan
    dirty, _ = gradients_for((dirty_hidden, head, target, temperature), torch.ones(2, 6))
    others = [0, 1, 3, 4, 5]
    EXACT.check(dirty[others], clean[others])
    assert dirty[2].isnan().all()


# ------------------------------------------------------------ squared probabilities


@pytest.mark.parametrize("vocab", [1, *VOCABULARIES])
def test_the_sum_of_squared_probabilities_is_that_of_float64(vocab):
    hidden, head, target, temperature = random_head(8, vocab, padding=3)
    log_prob, entropy, squares = log_probs_with_squares(
        hidden, Head(head, vocab), target, temperature
    )
    EXACT.check(
        [log_prob, entropy], list(log_probs(hidden, Head(head, vocab), target, temperature))
    )
    expected = log_softmax_64(hidden, head, temperature, vocab).exp().square().sum(1)
    # As a ratio, since the sums of a large vocabulary are small.
    FP32_SAME_OP.check(squares / expected, torch.ones(8).double())
    assert squares.dtype is torch.float32
    with planted_fault("another sum"):
        FP32_SAME_OP.check(squares / expected * (1 + 3e-5), torch.ones(8).double())


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e2, 1e4])
def test_squares_of_any_size_of_logits(size):
    hidden, head, target, temperature = random_head(4, VOCAB_CHUNK + 5)
    # Products of powers of two and few bits are exact: an fp32 logit of 1e6 has no digit left to compare otherwise.
    hidden, head = torch.full((4, 1), size), (head[:, :1] * 64).round() / 64
    found = log_probs_with_squares(hidden, Head(head, len(head)), target, temperature)[2]
    logits = (hidden @ head.T / temperature[:, None]).double()
    FP32_SAME_OP.check(found, logits.softmax(1).square().sum(1))


def test_squares_and_the_target_give_the_norm_of_the_scores_gradient():
    """|d log p_t / dz|^2 = sum over v of (1[v = t] - p_v)^2 = 1 - 2 p_t + sum of p_v^2."""
    hidden, head, target, temperature = random_head(6, 50)
    log_prob, _, squares = log_probs_with_squares(hidden, Head(head, 50), target, temperature)
    scaled_RV = (hidden @ head.T / temperature[:, None]).double().requires_grad_()
    scaled_RV.log_softmax(1).gather(1, target[:, None]).sum().backward()
    expected = scaled_RV.grad.square().sum(1)
    FP32_SAME_OP.check(1 - 2 * log_prob.exp() + squares, expected)
    with planted_fault("the target counted once"):
        FP32_SAME_OP.check(1 - log_prob.exp() + squares, expected)


def test_squares_leave_the_gradients_as_they_are_and_have_none():
    hidden, head, target, temperature = random_head(7, VOCAB_CHUNK + 5)

    def with_squares(hidden, head):
        found = log_probs_with_squares(hidden, Head(head, len(head)), target, temperature)
        assert not found[2].requires_grad
        return found[:2]

    def without(hidden, head):
        return log_probs(hidden, Head(head, len(head)), target, temperature)

    _, ours = values_and_gradients(with_squares, [hidden, head])
    _, theirs = values_and_gradients(without, [hidden, head])
    EXACT.check(ours, theirs)


def test_no_rows_have_no_squares():
    hidden, head, target, temperature = random_head(0, 40)
    found = log_probs_with_squares(hidden, Head(head, 40), target, temperature)
    assert [x.shape for x in found] == [(0,)] * 3
