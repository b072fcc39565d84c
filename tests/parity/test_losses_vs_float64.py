"""The loss of a step and its gradient against plain formulas: each sample alone, a full log_softmax, float64.

Nothing here calls ``zerogap.algorithms``: advantages, corrections, ratios, clips and denominators are written out.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.loss_cases import CASES, gradients_of, samples_for, score, trainer_of
from helpers.packed_rows import PackedRows, log_probs_alone, log_softmax_alone
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import FP32_MODEL, FP32_MODEL_GRADIENT
from helpers.train_batches import standard_scores

from zerogap.algorithms import reduce_loss
from zerogap.train import objective as objective_module


class Columns:
    """What a formula needs: one list entry per sample, trainable tokens only."""

    def __init__(self, case):
        self.case, self.samples = case, samples_for(case.loss)
        self.model, frozen = tiny_model("qwen3"), tiny_model("qwen3", seed=1)
        self.log_probs = [log_probs_alone(self.model, s) for s in self.samples]
        self.ref = [log_probs_alone(frozen, s).detach() for s in self.samples]
        scored = [x[s.loss_mask] for x, s in zip(score(self.samples), self.samples, strict=True)]
        self.rollout = [
            torch.from_numpy(s.rollout_log_probs[s.loss_mask]).double() for s in self.samples
        ]
        is_bypass = dict(case.train).get("old_log_probs") == "rollout"
        self.old = self.rollout if is_bypass else [x.detach() for x in self.log_probs]
        # From fp32 log-probs, as in the trainer: float64 could fall on the other side of a bound.
        self.gap = [torch.from_numpy(x).double() - r for x, r in zip(scored, self.rollout, strict=True)]  # fmt: skip
        self.num_tokens = sum(len(x) for x in self.log_probs)
        self.advantages = standard_scores(self.samples)

    def __len__(self):
        return len(self.samples)


def clipped(ratio, advantage, low, high):
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def corrected_grpo(c):
    loss, corrections = c.case.loss, c.case.corrections
    bounded = [d.exp().clamp(max=corrections.weight.high) for d in c.gap]
    mean_weight = sum(w.sum() for w in bounded) / c.num_tokens
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(c)):
        w = c.gap[i].exp()
        keep = (w >= corrections.mask.low) & (w <= corrections.mask.high)
        keep &= ~(w < corrections.veto).any()
        surrogate = clipped((c.log_probs[i] - c.old[i]).exp(), c.advantages[i], loss.clip_low, loss.clip_high)  # fmt: skip
        difference = c.log_probs[i] - c.ref[i]
        kl = (-difference).exp() - 1 + difference
        total = total + (keep * (surrogate * bounded[i] / mean_weight + 0.1 * kl)).sum()
    return total / c.num_tokens


def bypassed_grpo(c):
    loss, max_kl = c.case.loss, c.case.corrections.off_policy_kl
    total = torch.zeros((), dtype=torch.float64)
    for i, advantage in enumerate(c.advantages):
        if advantage < 0 and (c.old[i] - c.log_probs[i].detach()).mean() > max_kl:
            continue
        terms = clipped((c.log_probs[i] - c.old[i]).exp(), advantage, loss.clip_low, loss.clip_high)
        if advantage < 0:
            terms = torch.minimum(terms, torch.full_like(terms, -loss.dual_clip * advantage))
        total = total + terms.sum()
    return total / c.num_tokens


def gspo(c):
    total = torch.zeros((), dtype=torch.float64)
    for i, advantage in enumerate(c.advantages):
        ratio = (c.log_probs[i] - c.old[i]).mean().exp()
        total = total + clipped(ratio, advantage, c.case.loss.clip_low, c.case.loss.clip_high)
    return total / len(c)


def cispo(c):
    total = torch.zeros((), dtype=torch.float64)
    for i, advantage in enumerate(c.advantages):
        ratio = (c.log_probs[i] - c.old[i]).exp().clamp(c.case.loss.ratio_low, c.case.loss.ratio_high)  # fmt: skip
        total = total - (ratio.detach() * advantage * c.log_probs[i]).sum()
    return total / c.num_tokens


def rloo(c):
    total = torch.zeros((), dtype=torch.float64)
    for i, sample in enumerate(c.samples):
        others = [s.reward for s in c.samples if s.group_id == sample.group_id and s is not sample]
        advantage = sample.reward - sum(others) / len(others)
        total = total - ((c.log_probs[i] - c.old[i]).exp() * advantage).sum()
    return total / c.num_tokens


def reinforce_pp(c):
    returns = []
    for i, sample in enumerate(c.samples):
        penalty = 0.1 * (c.log_probs[i].detach() - c.ref[i])
        still_to_come = penalty.flip(0).cumsum(0).flip(0)
        returns.append(sample.reward - still_to_come)
    flat = torch.cat(returns)
    normalised = [(r - flat.mean()) / flat.std() for r in returns]
    terms = [-(p - o).exp() * a for p, o, a in zip(c.log_probs, c.old, normalised, strict=True)]
    return torch.cat(terms).sum() / c.num_tokens


def without_group_mean(c):
    rewards = {
        s.group_id: [o.reward for o in c.samples if o.group_id == s.group_id] for s in c.samples
    }
    return [s.reward - sum(rewards[s.group_id]) / len(rewards[s.group_id]) for s in c.samples]


def reinforce_pp_baseline(c):
    flat = torch.cat([torch.full_like(p, a) for p, a in zip(c.log_probs, without_group_mean(c), strict=True)])  # fmt: skip
    ratio = (torch.cat(c.log_probs) - torch.cat(c.old)).exp()
    return -(ratio * (flat - flat.mean()) / flat.std()).sum() / c.num_tokens


def clipped_sum(c, advantages):
    bounds = c.case.loss.clip_low, c.case.loss.clip_high
    columns = zip(c.log_probs, c.old, advantages, strict=True)
    return sum(clipped((p - o).exp(), a, *bounds).sum() for p, o, a in columns)


def dr_grpo(c):
    return clipped_sum(c, without_group_mean(c)) / (len(c) * c.case.loss.constant_denominator)


def dapo(c):
    return clipped_sum(c, c.advantages) / c.num_tokens


def grpo_with_kl_in_the_reward(c):
    penalties = [0.1 * (p.detach() - ref).sum().item() for p, ref in zip(c.log_probs, c.ref, strict=True)]  # fmt: skip
    shaped = [replace(s, reward=s.reward - x) for s, x in zip(c.samples, penalties, strict=True)]
    return clipped_sum(c, standard_scores(shaped)) / c.num_tokens


def sampled_distillation(c):
    teacher = tiny_model("qwen3", seed=2)
    total = torch.zeros((), dtype=torch.float64)
    for i, sample in enumerate(c.samples):
        advantage = log_probs_alone(teacher, sample).detach() - c.old[i]
        total = total - ((c.log_probs[i] - c.old[i]).exp() * advantage).sum()
    return total / c.num_tokens


def top_k_distillation(c):
    """Reverse without a weight, or forward with one of the sample's geometric mean."""
    teacher = tiny_model("qwen3", seed=2)
    total = torch.zeros((), dtype=torch.float64)
    for i, sample in enumerate(c.samples):
        theirs, ids = log_softmax_alone(teacher, sample).detach().topk(c.case.loss.top_k)
        ours = log_softmax_alone(c.model, sample).gather(1, ids)
        theirs, ours = (torch.cat([x, (1 - x.exp().sum(1, keepdim=True)).log()], 1) for x in (theirs, ours))  # fmt: skip
        if c.case.loss.direction == "reverse":
            total = total + (ours.exp() * (ours - theirs)).sum()
        else:
            weight = c.gap[i].mean().exp().clamp(max=c.case.corrections.weight.high)
            total = total + weight * (theirs.exp() * (theirs - ours)).sum()
    return total / c.num_tokens


def sft(c):
    return -torch.cat(c.log_probs).sum() / c.num_tokens


def dpo(c):
    losses, (beta, smoothing) = [], (c.case.loss.beta, c.case.loss.label_smoothing)
    for i, chosen in enumerate(c.samples):
        for j, rejected in enumerate(c.samples):
            if chosen.group_id == rejected.group_id and chosen.reward > rejected.reward:
                h = beta * ((c.log_probs[i] - c.ref[i]).sum() - (c.log_probs[j] - c.ref[j]).sum())
                log_sigmoid = torch.nn.functional.logsigmoid
                losses.append(-(1 - smoothing) * log_sigmoid(h) - smoothing * log_sigmoid(-h))
    assert len(losses) == 6
    return sum(losses) / len(losses)


FORMULAS = {
    "grpo, corrected": corrected_grpo,
    "grpo, bypass, off-policy mask": bypassed_grpo,
    "grpo, kl in the reward": grpo_with_kl_in_the_reward,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp, baseline": reinforce_pp_baseline,
    "distillation, sampled": sampled_distillation,
    "distillation, top_k": top_k_distillation,
    "distillation, forward": top_k_distillation,
    "sft": sft,
    "dpo": dpo,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradient_are_those_of_the_formula(name):
    gradient, metrics = gradients_of(CASES[name], micro_batch_tokens=60)
    columns = Columns(CASES[name])
    expected_loss = FORMULAS[name](columns)
    expected_loss.backward()
    expected = {n: p.grad for n, p in columns.model.named_parameters()}
    FP32_MODEL.check(metrics.loss, expected_loss.item())
    FP32_MODEL_GRADIENT.check(gradient, expected)
    with planted_fault("a gradient that is 0.1 % longer"):
        FP32_MODEL_GRADIENT.check({n: g * 1.001 for n, g in gradient.items()}, expected)


def test_what_the_formulas_exercise_does_happen():
    # A bound that no sample reaches would test nothing.
    corrected = gradients_of(CASES["grpo, corrected"])[1].corrections
    assert min(corrected.fraction_rejected_low, corrected.fraction_rejected_high) > 0
    assert corrected.fraction_truncated_high > 0
    assert 0 < corrected.num_vetoed_samples < corrected.num_samples
    assert corrected.weight_after.mean == pytest.approx(1.0)
    assert 0 < gradients_of(CASES["grpo, bypass, off-policy mask"])[1].off_policy_fraction < 1
    for name in ("grpo, bypass, off-policy mask", "dr_grpo", "dapo", "gspo", "cispo"):
        assert 0 < gradients_of(CASES[name])[1].policy.clip_fraction < 1


def values_alone(model, sample) -> torch.Tensor:
    """float32 [L]: the critic's value before each trainable token."""
    rows = PackedRows([sample.token_ids.tolist()])
    attention = rows.attention(model.trunk.config.attention_scale)
    hidden_TD = model.trunk(rows.token_ids_T, rows.positions_T, attention)
    return (hidden_TD @ model.value_head)[:-1][torch.tensor(sample.loss_mask[1:])]


def generalised_advantages(values, reward, *, discount, gae_lambda):
    """Backwards over a sample's trainable tokens; the reward is on the last."""
    found, next_value, next_advantage = np.zeros(len(values)), 0.0, 0.0
    for t in reversed(range(len(values))):
        reward_t = reward if t == len(values) - 1 else 0.0
        delta = reward_t + discount * next_value - values[t]
        next_advantage = found[t] = delta + discount * gae_lambda * next_advantage
        next_value = values[t]
    return found


@pytest.mark.parametrize("fault", [None, "token", "lambda"])
def test_ppo_and_its_critic_are_those_of_the_formula(fault):
    case = CASES["ppo"]
    gradient, metrics = gradients_of(case, micro_batch_tokens=60)
    columns, critic = Columns(case), trainer_of(case).critic.model
    for parameter in critic.parameters():
        parameter.grad = None
    values = [values_alone(critic, s) for s in columns.samples]
    if fault == "token":
        values = [v.roll(1) for v in values]
    gae_lambda = 0.91 if fault == "lambda" else case.loss.gae_lambda
    raw = [
        generalised_advantages(v.tolist(), s.reward, discount=case.loss.discount, gae_lambda=gae_lambda)
        for v, s in zip(values, columns.samples, strict=True)
    ]  # fmt: skip
    flat = np.concatenate(raw)
    advantages = [(a - flat.mean()) / flat.std(ddof=1) for a in raw]
    policy_loss = -sum(
        ((p - o).exp() * torch.from_numpy(a)).sum()
        for p, o, a in zip(columns.log_probs, columns.old, advantages, strict=True)
    )
    (policy_loss / columns.num_tokens).backward()
    value_loss = sum(
        ((v - (v.detach() + torch.from_numpy(a))) ** 2 / 2).sum()
        for v, a in zip(values, raw, strict=True)
    )
    (value_loss / columns.num_tokens).backward()
    expected = {n: p.grad for n, p in columns.model.named_parameters()}
    expected |= {f"critic.{n}": p.grad for n, p in critic.named_parameters()}

    def check():
        FP32_MODEL.check(metrics.loss, policy_loss.item() / columns.num_tokens)
        FP32_MODEL.check(metrics.critic.loss, value_loss.item() / columns.num_tokens)
        FP32_MODEL_GRADIENT.check(gradient, expected)

    if fault is None:
        check()
    else:
        with planted_fault(f"another {fault}"):
            check()


def test_a_weighted_kl_penalty_would_be_noticed(monkeypatch):
    columns = Columns(CASES["grpo, corrected"])
    weights = []

    def weighs_all(numerator_T, denominator_T, keep_T, *, weight_T=None):
        weights.append(weight_T if weight_T is not None else weights[-1])
        return reduce_loss(numerator_T, denominator_T, keep_T, weight_T=weights[-1])

    monkeypatch.setattr(objective_module, "reduce_loss", weighs_all)
    _, metrics = gradients_of(CASES["grpo, corrected"])
    with planted_fault("the weights multiply the KL too"):
        FP32_MODEL.check(metrics.loss, corrected_grpo(columns).item())
    assert math.isfinite(metrics.loss)
