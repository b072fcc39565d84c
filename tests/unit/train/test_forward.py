import numpy as np
import torch
from helpers.packed_rows import log_softmax_alone
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT, FP32_MODEL, FP32_MODEL_GRADIENT, GRADIENT_NORM
from helpers.train_batches import make_groups, rewarded, train_on

from zerogap.config.train import TrainConfig
from zerogap.kernels import backend_of
from zerogap.train import NativeTrainer
from zerogap.train.forward import score_candidates, score_micro_batch, statistics
from zerogap.train.packing import pack

SAMPLES = make_groups(2, 3, temperature=0.7)


def batches(max_rows):
    return pack(SAMPLES, [s.loss_mask for s in SAMPLES], max_rows=max_rows)


def weights_of_targets(batch):
    return torch.from_numpy(batch.sample_R + batch.position_R) % 7 - 3.0


def gradients(loss_of_batch, max_rows=10_000):
    """Gradients of a weighted sum of entropies by every parameter, over all micro-batches."""
    policy = tiny_model()
    for batch in batches(max_rows):
        loss_of_batch(policy, batch).backward()
    return {name: p.grad for name, p in policy.named_parameters()}


def entropies(policy, batch):
    return (score_micro_batch(policy, batch, SAMPLES)[1] * weights_of_targets(batch)).sum()


def entropies_beside_candidates(policy, batch):
    candidates_RK = np.zeros((len(batch.target_R), 2), np.int64)
    _, entropy_R, _ = score_candidates(policy, batch, SAMPLES, candidates_RK)
    return (entropy_R * weights_of_targets(batch)).sum()


def entropies_of_logits(policy, _):
    """The same sum from the logits of each sample alone, over the whole vocabulary."""
    total = torch.zeros((), dtype=torch.float64)
    for b, sample in enumerate(SAMPLES):
        entropy_L = torch.special.entr(log_softmax_alone(policy, sample).exp()).sum(-1)
        positions_L = torch.from_numpy(np.flatnonzero(sample.loss_mask))
        total += (entropy_L * ((b + positions_L) % 7 - 3.0)).sum()
    return total


def test_the_entropy_of_a_target_is_that_of_the_logits_and_so_is_its_gradient():
    policy, (batch,) = tiny_model(), batches(10_000)
    FP32_MODEL.check(entropies(policy, batch).double(), entropies_of_logits(policy, batch))
    ours, theirs = gradients(entropies), gradients(entropies_of_logits)
    FP32_MODEL_GRADIENT.check(ours, theirs)
    FP32_MODEL_GRADIENT.check(gradients(entropies_beside_candidates), theirs)
    with planted_fault("the gradient of the log-probs"):
        wrong = gradients(
            lambda p, b: (score_micro_batch(p, b, SAMPLES)[0] * weights_of_targets(b)).sum()
        )
        FP32_MODEL_GRADIENT.check(wrong, theirs)


def test_the_entropys_gradient_does_not_depend_on_the_micro_batch():
    one_by_one, together = gradients(entropies, 1), gradients(entropies)
    GRADIENT_NORM.check(together, one_by_one)
    with planted_fault("a gradient scaled by 1.01"):
        GRADIENT_NORM.check(together | {"norm.weight": together["norm.weight"] * 1.01}, one_by_one)


def test_a_step_that_only_reports_the_entropy_asks_for_no_gradient_of_it(monkeypatch):
    backend, asked = backend_of(torch.ones(1)), []
    honest = backend.logits_gradient_

    def watched(*tensors):
        asked.append(tensors[4] is not None)
        honest(*tensors)

    monkeypatch.setattr(backend, "logits_gradient_", watched)
    trainer = NativeTrainer(tiny_model(), TrainConfig(), total_steps=1)
    metrics = train_on(trainer, rewarded(SAMPLES))
    assert metrics.policy.entropy > 0
    assert asked
    assert not any(asked)


def test_all_statistics_of_a_pass_have_the_bits_of_the_log_probs_and_are_those_of_the_logits():
    policy, (batch,) = tiny_model(), batches(10_000)
    ((_, found),) = statistics(policy, [batch], SAMPLES)
    with torch.no_grad():
        log_prob_R, entropy_R = score_micro_batch(policy, batch, SAMPLES)
    EXACT.check([found["log_prob"], found["entropy"]], [log_prob_R.numpy(), entropy_R.numpy()])
    of_sample = [
        log_softmax_alone(policy, s).detach().exp().square().sum(1).numpy() for s in SAMPLES
    ]
    slots = [np.flatnonzero(s.loss_mask).tolist() for s in SAMPLES]
    pairs = zip(batch.sample_R, batch.position_R, strict=True)
    square_sums = [of_sample[b][slots[b].index(position)] for b, position in pairs]
    FP32_MODEL.check(found["square_sum"].astype(float), np.array(square_sums))
    with planted_fault("entropies"):
        FP32_MODEL.check(found["entropy"].astype(float), np.array(square_sums))
