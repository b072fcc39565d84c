import pytest
import torch
from helpers.kernel_paths import doubled, values_and_gradients
from helpers.planted_fault import assert_notices, planted_fault, scaled
from helpers.tolerance import EXACT, FP32_MODEL_GRADIENT, FP32_SAME_OP

from zerogap.errors import KernelError
from zerogap.kernels import VOCAB_CHUNK, Head, log_probs

pytestmark = pytest.mark.usefixtures("path")

TEMPERATURES = (0.3, 0.6, 1.0, 1.7)


def random_head(num_rows, vocab, width=12, *, padding=0):
    hidden = torch.randn(num_rows, width)
    head = torch.randn(vocab + padding, width)
    target = torch.randint(vocab, (num_rows,))
    temperature = torch.tensor(TEMPERATURES)[torch.arange(num_rows) % 4]
    return hidden, head, target, temperature


def formula(hidden, head, target, temperature, vocab):
    """Log-prob of the target and entropy, from torch's log_softmax in the dtype given."""
    log_softmax = (hidden @ head[:vocab].T / temperature[:, None]).log_softmax(-1)
    entropy = torch.special.entr(log_softmax.exp()).sum(-1)
    return log_softmax.gather(1, target[:, None]).squeeze(1), entropy


@pytest.mark.parametrize(
    "vocab", [1, 2, 17, 259, VOCAB_CHUNK, VOCAB_CHUNK + 1, 2 * VOCAB_CHUNK + 40]
)
def test_log_probs_entropy_and_gradients_are_log_softmaxs(vocab):
    hidden, head, target, temperature = random_head(5, vocab, padding=3)

    def kernel(hidden, head):
        return log_probs(hidden, Head(head, vocab), target, temperature)

    def in_float64(hidden, head):
        return formula(hidden, head, target, temperature.double(), vocab)

    values, gradients = values_and_gradients(kernel, [hidden, head])
    expected, expected_gradients = values_and_gradients(in_float64, doubled([hidden, head]))
    FP32_SAME_OP.check(values, expected)
    if vocab == 1:
        assert all((g.abs() < 1e-6).all() for g in gradients)
        return
    FP32_MODEL_GRADIENT.check(gradients, expected_gradients)
    with planted_fault("one hidden number"):
        FP32_SAME_OP.check(kernel(scaled(hidden), head)[0], expected[0])
    with planted_fault("one weight of a target"):
        head[target[0], 0] += 0.01
        FP32_SAME_OP.check(kernel(hidden, head)[0], expected[0])
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        with planted_fault("one gradient"):
            FP32_MODEL_GRADIENT.check(scaled(ours), theirs)


def check_renormalises(log_probs_V):
    """The probabilities of all ids of one row sum to 1."""
    FP32_SAME_OP.check(log_probs_V.double().exp().sum(), 1.0)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_log_probs_sum_to_one_at_every_temperature(temperature):
    """The logits are divided by T, never the log-probs."""
    hidden, head, _, _ = random_head(1, 50)
    rows = hidden.expand(50, -1).contiguous()
    temperatures = torch.full((50,), temperature)
    every, _ = log_probs(rows, Head(head, 50), torch.arange(50), temperatures)
    check_renormalises(every)
    if temperature != 1:
        at_1, _ = log_probs(rows, Head(head, 50), torch.arange(50), torch.ones(50))
        assert_notices("log-probs over T", lambda: check_renormalises(at_1 / temperature))
        assert_notices("T ignored", lambda: FP32_SAME_OP.check(at_1, every))


def test_the_case_of_three_logits_at_half_temperature():
    hidden = torch.ones(3, 1)
    head = torch.tensor([[2.0], [1.0], [0.0]])
    ours, _ = log_probs(hidden, Head(head, 3), torch.arange(3), torch.full((3,), 0.5))
    FP32_SAME_OP.check(ours, torch.tensor([4.0, 2.0, 0.0]).log_softmax(0))


def test_ids_at_or_past_the_limit_carry_no_mass_and_get_no_gradient():
    hidden, head, target, temperature = random_head(4, 30, padding=10)
    head[30:] = 100.0
    cut, _ = log_probs(hidden, Head(head[:30], 30), target, temperature)
    head.requires_grad_()
    padded, _ = log_probs(hidden, Head(head, 30), target, temperature)
    EXACT.check(padded, cut)
    padded.sum().backward()
    EXACT.check(head.grad[30:], torch.zeros(10, 12))
    with planted_fault("one id past the limit"):
        EXACT.check(log_probs(hidden, Head(head, 31), target, temperature)[0], cut)


def test_extreme_logits_stay_finite():
    head = torch.tensor([[200.0], [0.0], [-200.0]])
    ours, entropy = log_probs(
        torch.tensor([[1.0], [-1.0], [300.0]]),
        Head(head, 3),
        torch.tensor([0, 0, 2]),
        torch.ones(3),
    )
    FP32_SAME_OP.check(ours, torch.tensor([0.0, -400.0, -120_000.0]))
    FP32_SAME_OP.check(entropy, torch.zeros(3))


@pytest.mark.parametrize("place", [0, 5, VOCAB_CHUNK - 1, VOCAB_CHUNK, VOCAB_CHUNK + 19])
@pytest.mark.parametrize("rest", [0.0, -torch.inf])
def test_a_nan_logit_is_a_nan_log_prob_wherever_it_stands(place, rest):
    # A row of chosen logits: hidden is 1, the head is the logits. -inf around a NaN must not hide it.
    vocab = VOCAB_CHUNK + 20
    logits = torch.zeros(vocab)
    begin = place // VOCAB_CHUNK * VOCAB_CHUNK
    logits[begin : begin + VOCAB_CHUNK] = rest
    logits[place] = torch.nan
    target = torch.tensor([VOCAB_CHUNK + 1 if begin == 0 else 1])
    ours, entropy = log_probs(torch.ones(1, 1), Head(logits[:, None], vocab), target, torch.ones(1))
    assert ours.isnan().all()
    assert entropy.isnan().all()


def test_a_chunk_without_mass_changes_nothing():
    logits = torch.randn(VOCAB_CHUNK + 20)
    logits[:VOCAB_CHUNK] = -torch.inf
    target = torch.tensor([VOCAB_CHUNK + 3])
    ours, _ = log_probs(torch.ones(1, 1), Head(logits[:, None], len(logits)), target, torch.ones(1))
    FP32_SAME_OP.check(ours[0], logits[VOCAB_CHUNK:].log_softmax(0)[3])


def test_a_nan_row_does_not_touch_another():
    hidden, head, target, temperature = random_head(6, 40)
    clean = log_probs(hidden, Head(head, 40), target, temperature)
    hidden[2] = torch.nan
    dirty = log_probs(hidden, Head(head, 40), target, temperature)
    others = [0, 1, 3, 4, 5]
    for ours, theirs in zip(dirty, clean, strict=True):
        EXACT.check(ours[others], theirs[others])
        assert ours[2].isnan()


def test_no_rows_give_nothing():
    hidden, head, target, temperature = random_head(0, 40)
    values, gradients = values_and_gradients(
        lambda hidden, head: log_probs(hidden, Head(head, 40), target, temperature),
        [hidden, head],
    )
    assert [v.shape for v in values] == [(0,), (0,)]
    EXACT.check(gradients, [torch.zeros_like(hidden), torch.zeros_like(head)])


def test_a_target_outside_the_vocabulary_has_no_number():
    hidden, head, target, temperature = random_head(3, 40, padding=5)
    for wrong in (-1, 40):
        target[1] = wrong
        found, entropy = log_probs(hidden, Head(head, 40), target, temperature)
        assert found.isnan().tolist() == [False, True, False]
        assert entropy.isfinite().all()


@pytest.mark.parametrize("vocab_limit", [0, 41])
def test_a_limit_that_the_head_does_not_have_is_refused(vocab_limit):
    hidden, head, target, temperature = random_head(3, 40)
    with pytest.raises(KernelError, match=f"vocab_limit {vocab_limit} with a head of 40 rows"):
        log_probs(hidden, Head(head, vocab_limit), target, temperature)


@pytest.mark.parametrize("num_ids", [1, 4])
def test_targets_for_another_number_of_rows_are_refused(num_ids):
    hidden, head, target, temperature = random_head(3, 40)
    with pytest.raises(KernelError, match=f"ids for {num_ids} rows were given with 3 rows"):
        log_probs(hidden, Head(head, 40), target[:1].expand(num_ids), temperature)


def test_a_temperature_of_another_dtype_or_length_is_refused(path):
    if path != "cpu":
        pytest.skip("torch itself refuses or promotes")
    hidden, head, target, temperature = random_head(3, 40)
    with pytest.raises(KernelError, match=r"float64 tensor of shape \(3,\)"):
        log_probs(hidden, Head(head, 40), target, temperature.double())
    with pytest.raises(KernelError, match=r"shape \(2,\).* of shape \(3,\)"):
        log_probs(hidden, Head(head, 40), target, temperature[:2])
