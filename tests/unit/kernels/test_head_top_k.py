import pytest
import torch
from helpers.kernel_paths import doubled, values_and_gradients
from helpers.planted_fault import planted_fault, scaled
from helpers.tolerance import EXACT, FP32_MODEL_GRADIENT, FP32_SAME_OP

from zerogap.errors import KernelError
from zerogap.kernels import (
    VOCAB_CHUNK,
    Compute,
    Head,
    log_probs,
    log_probs_of,
    top_k_log_probs,
)

pytestmark = pytest.mark.usefixtures("path")

TEMPERATURES = (0.3, 0.6, 1.0, 1.7)
VOCABULARIES = [2, 17, 259, VOCAB_CHUNK, VOCAB_CHUNK + 1, 2 * VOCAB_CHUNK + 40]


def random_head(num_rows, vocab, *, num_ids=6, width=12, padding=3):
    hidden = torch.randn(num_rows, width)
    head = torch.randn(vocab + padding, width)
    ids = torch.randint(vocab, (num_rows, num_ids))
    temperature = torch.tensor(TEMPERATURES)[torch.arange(num_rows) % 4]
    return hidden, head, ids, temperature


def log_softmax(hidden, head, temperature, vocab):
    return (hidden @ head[:vocab].T / temperature[:, None]).log_softmax(-1)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_log_probs_entropy_and_gradients_are_log_softmaxs(vocab):
    hidden, head, ids, temperature = random_head(5, vocab)
    ids[1] = ids[1, 0]  # an id may occur more than once

    def kernel(hidden, head):
        return log_probs_of(hidden, Head(head, vocab), ids, temperature)

    def in_float64(hidden, head):
        log_probs_RV = log_softmax(hidden, head, temperature.double(), vocab)
        entropy_R = torch.special.entr(log_probs_RV.exp()).sum(-1)
        return log_probs_RV.gather(1, ids), entropy_R

    values, gradients = values_and_gradients(kernel, [hidden, head])
    expected, expected_gradients = values_and_gradients(in_float64, doubled([hidden, head]))
    FP32_SAME_OP.check(values, expected)
    FP32_MODEL_GRADIENT.check(gradients, expected_gradients)
    EXACT.check(gradients[1][vocab:], torch.zeros(3, 12))
    with planted_fault("one hidden number"):
        FP32_SAME_OP.check(kernel(scaled(hidden), head)[0], expected[0])
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        with planted_fault("one gradient"):
            FP32_MODEL_GRADIENT.check(scaled(ours), theirs)


def test_an_id_has_the_log_prob_and_the_entropy_of_the_engines_function_to_the_bit():
    vocab = VOCAB_CHUNK + 70
    hidden, head, ids, temperature = random_head(9, vocab)
    several, entropy = log_probs_of(hidden, Head(head, vocab), ids, temperature)
    for k in range(ids.shape[1]):
        alone = log_probs(hidden, Head(head, vocab), ids[:, k].contiguous(), temperature)
        EXACT.check([several[:, k], entropy], list(alone))
    with planted_fault("log-probs over T instead of logits over T"):
        at_1, _ = log_probs_of(hidden, Head(head, vocab), ids, torch.ones(9))
        FP32_SAME_OP.check(at_1 / temperature[:, None], several)


def test_a_row_does_not_depend_on_the_rows_beside_it():
    vocab = VOCAB_CHUNK + 70
    hidden, head, ids, temperature = random_head(13, vocab)
    every, _ = log_probs_of(hidden, Head(head, vocab), ids, temperature)
    every_top = top_k_log_probs(hidden, Head(head, vocab), 5, temperature)
    for rows in (slice(0, 1), slice(4, 9), slice(12, 13)):
        few, _ = log_probs_of(hidden[rows], Head(head, vocab), ids[rows], temperature[rows])
        top = top_k_log_probs(hidden[rows], Head(head, vocab), 5, temperature[rows])
        EXACT.check(few, every[rows])
        EXACT.check(list(top), [column[rows] for column in every_top])
    with planted_fault("another row"):
        EXACT.check(few, every[:1])


def test_a_nan_row_does_not_touch_another():
    hidden, head, ids, temperature = random_head(6, 40)
    clean, _ = log_probs_of(hidden, Head(head, 40), ids, temperature)
    clean_top = top_k_log_probs(hidden, Head(head, 40), 3, temperature)
    hidden[2] = torch.nan
    dirty, _ = log_probs_of(hidden, Head(head, 40), ids, temperature)
    dirty_top = top_k_log_probs(hidden, Head(head, 40), 3, temperature)
    others = [0, 1, 3, 4, 5]
    EXACT.check(dirty[others], clean[others])
    EXACT.check([c[others] for c in dirty_top], [c[others] for c in clean_top])
    assert dirty[2].isnan().all()
    assert dirty_top[1][2].isnan().all()


def test_gradients_in_place_are_the_same_bits():
    hidden, head, ids, temperature = random_head(7, VOCAB_CHUNK + 5)
    leaf = head.clone().requires_grad_()

    def loss(**how):
        found, entropy = log_probs_of(hidden, Head(leaf, VOCAB_CHUNK), ids, temperature, **how)
        return found.sum() - 0.1 * entropy.sum()

    (expected,) = torch.autograd.grad(loss(), [leaf])
    leaf.grad = torch.zeros_like(leaf)
    loss(compute=Compute(adds_to_grad=True)).backward()
    EXACT.check(leaf.grad, expected)
    with planted_fault("added twice"):
        EXACT.check(leaf.grad * 2, expected)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("k", [1, 2, 33])
def test_the_top_k_are_those_of_a_sort_of_all(vocab, k):
    k = min(k, vocab)
    hidden, head, _, temperature = random_head(5, vocab)
    ids, found = top_k_log_probs(hidden, Head(head, vocab), k, temperature)
    order = log_softmax(hidden.double(), head.double(), temperature.double(), vocab).sort(
        1, descending=True
    )
    FP32_SAME_OP.check(found, order.values[:, :k])
    EXACT.check(ids, order.indices[:, :k])
    EXACT.check(found, log_probs_of(hidden, Head(head, vocab), ids, temperature)[0])
    with planted_fault("the next likeliest instead"):
        EXACT.check(ids, order.indices[:, : k + 1][:, -k:] + (k == vocab))


def test_equal_ids_come_by_ascending_id_within_and_across_chunks():
    vocab = 2 * VOCAB_CHUNK + 10
    logits = torch.zeros(vocab)
    likely = [7, VOCAB_CHUNK - 1, VOCAB_CHUNK, 2 * VOCAB_CHUNK + 3]
    logits[likely] = 2.0
    logits[2 * VOCAB_CHUNK] = 3.0
    one_row = (torch.ones(1, 1), Head(logits[:, None].contiguous(), vocab))
    for k, expected in {
        1: [2 * VOCAB_CHUNK],
        3: [2 * VOCAB_CHUNK, 7, VOCAB_CHUNK - 1],
        5: [2 * VOCAB_CHUNK, *likely],
        7: [2 * VOCAB_CHUNK, *likely, 0, 1],
    }.items():
        ids, _ = top_k_log_probs(*one_row, k, torch.ones(1))
        assert ids.tolist() == [expected]


def test_no_rows_give_nothing():
    hidden, head, ids, temperature = random_head(0, 40)
    values, gradients = values_and_gradients(
        lambda hidden, head: log_probs_of(hidden, Head(head, 40), ids, temperature),
        [hidden, head],
    )
    assert [v.shape for v in values] == [(0, 6), (0,)]
    EXACT.check(gradients, [torch.zeros_like(hidden), torch.zeros_like(head)])
    assert top_k_log_probs(hidden, Head(head, 40), 3, temperature)[0].shape == (0, 3)


def test_ids_that_do_not_exist_have_no_number_and_such_counts_are_refused():
    hidden, head, ids, temperature = random_head(3, 40)
    for wrong in (-1, 40):
        ids[1, 2] = wrong
        found, _ = log_probs_of(hidden, Head(head, 40), ids, temperature)
        assert found.isnan().nonzero().tolist() == [[1, 2]]
    for k in (0, 41):
        with pytest.raises(KernelError, match=rf"k = {k} is outside \[1, 40\]"):
            top_k_log_probs(hidden, Head(head, 40), k, temperature)
