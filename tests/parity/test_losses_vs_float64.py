"""The loss of a step and its gradient against plain formulas: each sample alone, a full log_softmax, float64.

Nothing here calls ``zerogap.algorithms``: advantages, corrections, ratios, clips and denominators are written out, as the
papers and their authors' code have them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.loss_cases import (
    BYPASS,
    CASES,
    IN_LOSS,
    Case,
    case,
    gradients_of,
    samples_for,
    score,
    trainer_of,
)
from helpers.packed_rows import PackedRows, log_probs_alone, log_softmax_alone
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import FP32_MODEL, FP32_MODEL_GRADIENT
from helpers.train_batches import VOCAB, make_sample, standard_scores

from zerogap.algorithms import Algorithm
from zerogap.train import objective as objective_module


class Columns:
    """What a formula needs: one list entry per sample, trainable tokens only."""

    def __init__(self, of, samples=None):
        self.algorithm = of.algorithm
        self.samples = samples_for(of.algorithm) if samples is None else samples
        self.model, frozen = tiny_model("qwen3"), tiny_model("qwen3", seed=1)
        self.log_probs = [log_probs_alone(self.model, s) for s in self.samples]
        self.ref = [log_probs_alone(frozen, s).detach() for s in self.samples]
        scored = [x[s.loss_mask] for x, s in zip(score(self.samples), self.samples, strict=True)]
        self.rollout = [
            torch.from_numpy(s.rollout_log_probs[s.loss_mask]).double() for s in self.samples
        ]
        is_bypass = dict(of.train).get("old_log_probs") == "rollout"
        self.old = self.rollout if is_bypass else [x.detach() for x in self.log_probs]
        # From fp32 log-probs, as in the trainer: float64 could fall on the other side of a bound.
        self.gap = [torch.from_numpy(x).double() - r for x, r in zip(scored, self.rollout, strict=True)]  # fmt: skip
        self.num_tokens = sum(len(x) for x in self.log_probs)
        self.advantages = standard_scores(self.samples)

    def __len__(self):
        return len(self.samples)

    @property
    def loss(self):
        return self.algorithm.loss

    @property
    def rewards(self):
        return [s.reward for s in self.samples]

    def ratio(self, i):
        return (self.log_probs[i] - self.old[i]).exp()

    def members(self, i):
        return [j for j in range(len(self)) if self.samples[j].group_id == self.samples[i].group_id]

    def centred(self, values):
        """Less the mean of the group."""
        means = [np.mean([values[j] for j in self.members(i)]) for i in range(len(self))]
        return [v - mean for v, mean in zip(values, means, strict=True)]


def over_tokens(c, terms):
    return torch.cat(terms).sum() / c.num_tokens


def over_samples(c, terms):
    """The mean over samples of the mean over tokens."""
    return sum(t.mean() for t in terms) / len(c)


def over_groups(c, terms):
    """The mean over prompts of the mean over all tokens of a prompt's samples."""
    ids = dict.fromkeys(s.group_id for s in c.samples)
    return sum(torch.cat([t for t, s in zip(terms, c.samples, strict=True) if s.group_id == name]).mean() for name in ids) / len(ids)  # fmt: skip


def clipped(ratio, advantage, low, high):
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def clip_terms(c, advantages):
    """PPO's, of each sample; an advantage is of a sample or of each of its tokens."""
    bounds = c.loss.clip_low, c.loss.clip_high
    return [clipped(c.ratio(i), a, *bounds) for i, a in enumerate(advantages)]


def k1(c, i):
    return c.log_probs[i] - c.ref[i]


def k3(c, i):
    return (-k1(c, i)).exp() - 1 + k1(c, i)


def bounded_weights(c):
    """min(w, high), over the mean of all tokens."""
    bounded = [d.exp().clamp(max=c.algorithm.corrections.weight.high) for d in c.gap]
    mean = sum(w.sum() for w in bounded) / c.num_tokens
    return [w / mean for w in bounded]


def kept(c, i):
    """Tokens that neither the mask nor the veto of their sample rejects."""
    corrections, w = c.algorithm.corrections, c.gap[i].exp()
    within = (w >= corrections.mask.low) & (w <= corrections.mask.high)
    return within & ~(w < corrections.veto).any()


def has_left(c, i):
    """The mean of log(mu / pi) of a sample that is pushed down exceeds the bound."""
    off = (c.rollout[i] - c.log_probs[i].detach()).mean()
    return c.advantages[i] < 0 and off > c.algorithm.corrections.off_policy_kl


def grpo(c):
    return over_tokens(c, clip_terms(c, c.advantages))


def corrected_grpo(c, *, weighs_kl=True, drops_kl=False):
    weights, terms = bounded_weights(c), []
    for i, surrogate in enumerate(clip_terms(c, c.advantages)):
        stays = 0.0 if has_left(c, i) else 1.0
        kl = 0.1 * c.ratio(i) * k3(c, i) * (stays if drops_kl else 1.0)
        weight = weights[i] if weighs_kl else 1.0
        terms.append(kept(c, i) * (weights[i] * stays * surrogate + weight * kl))
    return over_tokens(c, terms)


def bypassed_grpo(c):
    terms = []
    for i, (surrogate, advantage) in enumerate(
        zip(clip_terms(c, c.advantages), c.advantages, strict=True)
    ):
        ceiling = -c.loss.dual_clip * advantage if advantage < 0 else np.inf
        terms.append(surrogate.clamp(max=ceiling) * (not has_left(c, i)))
    return over_tokens(c, terms)


def grpo_with_k2(c):
    """k2 with a detached ratio: r (log pi - log ref) d log pi is the KL's gradient."""
    kl = [0.1 * c.ratio(i).detach() * k1(c, i) ** 2 / 2 for i in range(len(c))]
    return grpo(c) + over_tokens(c, kl)


def entropies(c):
    for sample in c.samples:
        log_probs = log_softmax_alone(c.model, sample)
        yield -(log_probs.exp() * log_probs).sum(1)


def grpo_with_entropy(c):
    return grpo(c) - 0.01 * over_tokens(c, list(entropies(c)))


def grpo_of_uncertain_tokens(c, *, quantile_of_each=False):
    """The policy's loss of the half of the batch's tokens with the highest entropies, over all tokens."""
    found = [h.detach() for h in entropies(c)]
    bounds = found if quantile_of_each else [torch.cat(found)] * len(c)
    keep = [h >= bound.quantile(0.5) for h, bound in zip(found, bounds, strict=True)]
    return over_tokens(c, [k * t for k, t in zip(keep, clip_terms(c, c.advantages), strict=True)])


def teacher_of(c):
    """A model of its own, or the policy without gradient."""
    return tiny_model("qwen3", seed=2 if c.algorithm.loads_teacher else 0)


def read_by_teacher(c, i, *, reads_hints=True):
    """What the teacher reads of a sample; None if it has no hint for it."""
    sample = c.samples[i]
    if not c.algorithm.has_hints or not reads_hints:
        return sample
    hint = sample.teacher_prompt_ids
    return None if hint is None else sample.with_prompt(hint)


def from_teacher(c, i):
    read = read_by_teacher(c, i)
    return 0.0 if read is None else log_probs_alone(teacher_of(c), read).detach() - c.old[i]


def grpo_with_a_teacher(c):
    return over_tokens(c, clip_terms(c, [a + 0.3 * from_teacher(c, i) for i, a in enumerate(c.advantages)]))  # fmt: skip


def grpo_with_kl_in_the_reward(c, *, is_in_the_divisor=False):
    """The penalty is in the numerator; the standard deviation is that of the raw rewards."""
    net = [r - 0.1 * (o - x).sum().item() for r, o, x in zip(c.rewards, c.old, c.ref, strict=True)]
    spread = net if is_in_the_divisor else c.rewards
    divisors = [np.std([spread[j] for j in c.members(i)], ddof=1) for i in range(len(c))]
    advantages = [a / d for a, d in zip(c.centred(net), divisors, strict=True)]
    return over_tokens(c, clip_terms(c, advantages))


def dr_grpo(c):
    return torch.cat(clip_terms(c, c.centred(c.rewards))).sum() / (len(c) * c.loss.constant_denominator)  # fmt: skip


def lite_ppo(c):
    std = np.std(c.rewards, ddof=1)
    return over_tokens(c, clip_terms(c, [a / std for a in c.centred(c.rewards)]))


def gdpo(c):
    centred = c.centred(c.rewards)
    return over_tokens(c, clip_terms(c, [a / np.std(centred, ddof=1) for a in centred]))


def mipu(c):
    """Dual clip, times each token's truncated weight."""
    terms = []
    for i, (surrogate, advantage) in enumerate(
        zip(clip_terms(c, c.advantages), c.advantages, strict=True)
    ):
        ceiling = -c.loss.dual_clip * advantage if advantage < 0 else np.inf
        weight = c.gap[i].exp().clamp(max=c.algorithm.corrections.weight.high)
        terms.append(weight * surrogate.clamp(max=ceiling))
    return over_tokens(c, terms)


def maxrl(c):
    means = [np.mean([c.rewards[j] for j in c.members(i)]) for i in range(len(c))]
    return over_tokens(c, clip_terms(c, [(r - m) / m for r, m in zip(c.rewards, means, strict=True)]))  # fmt: skip


def otb(c, *, counts_the_last=False):
    """A_it = R_i - B_t over the members that are alive at their t-th trainable token; 0 where one is alone."""
    energies = []
    for i, sample in enumerate(c.samples):
        probs = log_softmax_alone(c.model, sample).detach().exp()
        own = c.old[i].exp()
        energies.append((1 - 2 * own + (probs**2).sum(1)).cumsum(0))
    advantages = []
    for i in range(len(c)):
        column = torch.zeros_like(c.old[i])
        for t in range(len(column)):
            alive = [j for j in c.members(i) if len(energies[j]) > t]
            total = sum(energies[j][t] for j in alive)
            baseline = sum(c.rewards[j] * energies[j][t] for j in alive) / total
            column[t] = c.rewards[i] - (baseline if len(alive) > 1 or counts_the_last else 0.0)
        advantages.append(column)
    return over_tokens(c, clip_terms(c, advantages))


def gspo(c):
    """The published form: a sample's ratio, with the gradient of all of its tokens."""
    total = torch.zeros((), dtype=torch.float64)
    for i, advantage in enumerate(c.advantages):
        ratio = (c.log_probs[i] - c.old[i]).mean().exp()
        total = total + clipped(ratio, advantage, c.loss.clip_low, c.loss.clip_high)
    return total / len(c)


def corrected_gspo(c, *, is_of_the_mean=False):
    """GSPO-token: the value of the sample's ratio, the gradient of the token."""
    weights, terms = bounded_weights(c), []
    for i, advantage in enumerate(c.advantages):
        of_sample = (c.log_probs[i] - c.old[i]).mean().exp()
        own = (c.log_probs[i] - c.log_probs[i].detach()).exp()
        ratio = of_sample.expand(len(own)) if is_of_the_mean else of_sample.detach() * own
        surrogate = clipped(ratio, advantage, c.loss.clip_low, c.loss.clip_high)
        terms.append(kept(c, i) * (not has_left(c, i)) * weights[i] * surrogate)
    return over_samples(c, terms)


def cispo_terms(c, advantages, ratios=None):
    bounds = c.loss.ratio_low, c.loss.ratio_high
    ratios = [c.ratio(i) for i in range(len(c))] if ratios is None else ratios
    columns = zip(ratios, advantages, c.log_probs, strict=True)
    return [-r.detach().clamp(*bounds) * a * p for r, a, p in columns]


def cispo(c):
    return over_tokens(c, cispo_terms(c, c.advantages))


def sequence_cispo(c):
    products = [(p - o).sum().exp() for p, o in zip(c.log_probs, c.old, strict=True)]
    return over_groups(c, cispo_terms(c, c.advantages, products))


def scalerl(c):
    centred = c.centred(c.rewards)
    std = np.std(centred, ddof=1)
    return over_groups(c, cispo_terms(c, [a / std for a in centred]))


def sapo(c):
    terms = []
    for i, advantage in enumerate(c.advantages):
        tau = c.loss.tau_pos if advantage > 0 else c.loss.tau_neg
        terms.append(-torch.sigmoid(tau * (c.ratio(i) - 1)) * 4 / tau * advantage)
    return over_samples(c, terms)


def dppo(c, *, drops_all=False):
    """Detached ratio to the sampler, truncated; a token that moved away too far has no gradient."""
    terms = []
    for i, advantage in enumerate(c.centred(c.rewards)):
        p, q = c.log_probs[i].detach().exp(), c.rollout[i].exp()
        kl = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
        divergence = (p - q).abs() if c.loss.divergence == "tv" else kl
        if advantage > 0:
            away, bound = p > q, c.loss.max_divergence_high
        else:
            away, bound = p < q, c.loss.max_divergence_low
        stays = ~((away | drops_all) & (divergence > bound))
        terms.append(-advantage * stays * (p / q).clamp(max=c.loss.max_ratio) * c.log_probs[i])
    return over_tokens(c, terms)


def drpo(c):
    terms = []
    for i, advantage in enumerate(c.centred(c.rewards)):
        ratio, q = (c.log_probs[i] - c.rollout[i]).exp(), c.rollout[i].exp()
        penalty = abs(advantage) * q * (ratio - 1) ** 2 / (2 * c.loss.delta)
        terms.append(-advantage * ratio + penalty)
    return over_tokens(c, terms)


def rloo(c):
    terms = []
    for i, reward in enumerate(c.rewards):
        others = [c.rewards[j] for j in c.members(i) if j != i]
        terms.append(-c.ratio(i) * (reward - sum(others) / len(others)))
    return over_tokens(c, terms)


def normalised(columns):
    flat = torch.cat(columns)
    return [(a - flat.mean()) / flat.std() for a in columns]


def reinforce_pp(c):
    returns = []
    for i, reward in enumerate(c.rewards):
        penalty = 0.1 * (c.log_probs[i].detach() - c.ref[i])
        still_to_come = penalty.flip(0).cumsum(0).flip(0)
        returns.append(reward - still_to_come)
    return over_tokens(c, clip_terms(c, normalised(returns)))


def reinforce_pp_baseline(c):
    discount, returns = c.algorithm.advantage.discount, []
    for i, reward in enumerate(c.centred(c.rewards)):
        to_the_last = torch.arange(len(c.old[i])).flip(0)
        returns.append(reward * torch.tensor(discount, dtype=torch.float64) ** to_the_last)
    return over_tokens(c, clip_terms(c, normalised(returns)))


def sampled_distillation(c):
    return over_tokens(c, [-c.ratio(i) * from_teacher(c, i) for i in range(len(c))])


def sampled_self_distillation(c):
    """Beside the rewards; without a bound on the ratio."""
    advantages = [a + 0.5 * from_teacher(c, i) for i, a in enumerate(c.advantages)]
    return over_tokens(c, [-c.ratio(i) * a for i, a in enumerate(advantages)])


def top_k_terms(c, **how):
    """Reverse without a weight, or forward with one of the sample's geometric mean, if there are corrections."""
    teacher, terms = teacher_of(c), []
    for i, sample in enumerate(c.samples):
        read = read_by_teacher(c, i, **how)
        if read is None:
            terms.append(torch.zeros(len(c.log_probs[i])))
            continue
        theirs, ids = log_softmax_alone(teacher, read).detach().topk(c.algorithm.teacher.top_k)
        ours = log_softmax_alone(c.model, sample).gather(1, ids)
        theirs, ours = (torch.cat([x, (1 - x.exp().sum(1, keepdim=True)).log()], 1) for x in (theirs, ours))  # fmt: skip
        if c.algorithm.teacher.direction == "reverse":
            terms.append((ours.exp() * (ours - theirs)).sum(1))
        else:
            weight = c.algorithm.corrections.weight
            weight = 1.0 if weight is None else c.gap[i].mean().exp().clamp(max=weight.high)
            terms.append(weight * (theirs.exp() * (theirs - ours)).sum(1))
    return terms


def top_k_distillation(c, **how):
    return over_tokens(c, top_k_terms(c, **how))


def sdft(c):
    return over_samples(c, top_k_terms(c))


def grpo_with_a_hint(c):
    clip, teacher = clip_terms(c, c.advantages), top_k_terms(c)
    return over_tokens(c, [a + b for a, b in zip(clip, teacher, strict=True)])


def sft(c):
    return -torch.cat(c.log_probs).sum() / c.num_tokens


def dpo(c):
    losses, (beta, smoothing) = [], (c.loss.beta, c.loss.label_smoothing)
    for i, chosen in enumerate(c.samples):
        for j, rejected in enumerate(c.samples):
            if chosen.group_id == rejected.group_id and chosen.reward > rejected.reward:
                h = beta * ((c.log_probs[i] - c.ref[i]).sum() - (c.log_probs[j] - c.ref[j]).sum())
                log_sigmoid = torch.nn.functional.logsigmoid
                losses.append(-(1 - smoothing) * log_sigmoid(h) - smoothing * log_sigmoid(-h))
    assert len(losses) == 6
    return sum(losses) / len(losses)


FORMULAS = {
    "grpo": grpo,
    "grpo, corrected": corrected_grpo,
    "grpo, bypass, off-policy mask": bypassed_grpo,
    "grpo, kl in the reward": grpo_with_kl_in_the_reward,
    "grpo, k2 in the loss, bypass": grpo_with_k2,
    "grpo, entropy": grpo_with_entropy,
    "grpo, top half of the entropies": grpo_of_uncertain_tokens,
    "grpo, top half of the entropies, bypass": grpo_of_uncertain_tokens,
    "grpo, teacher too": grpo_with_a_teacher,
    "dr_grpo": dr_grpo,
    "dapo": grpo,
    "gspo": gspo,
    "gspo, corrected": corrected_gspo,
    "sequence ratio, cispo": sequence_cispo,
    "cispo": cispo,
    "sapo": sapo,
    "dppo": dppo,
    "dppo, kl": dppo,
    "drpo": drpo,
    "rloo": rloo,
    "lite_ppo": lite_ppo,
    "scalerl": scalerl,
    "maxrl": maxrl,
    "otb": otb,
    "gdpo": gdpo,
    "mipu": mipu,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp, baseline": reinforce_pp_baseline,
    "distillation, sampled": sampled_distillation,
    "distillation, top_k": top_k_distillation,
    "distillation, forward": top_k_distillation,
    "sdpo, sampled": sampled_self_distillation,
    "sdpo": top_k_distillation,
    "sdft": sdft,
    "policy with a hint": grpo_with_a_hint,
    "sft": sft,
    "dpo": dpo,
}
"""Of every case but those with a critic, which are below."""


def check_against(formula, of, found, samples=None, **how):
    """Loss and gradient of ``gradients_of`` against a formula."""
    columns, (gradient, metrics) = Columns(of, samples), found
    expected_loss = formula(columns, **how)
    expected_loss.backward()
    FP32_MODEL.check(metrics.loss, expected_loss.item())
    expected = {n: p.grad for n, p in columns.model.named_parameters()}
    FP32_MODEL_GRADIENT.check(gradient, expected)
    return expected


def test_every_case_has_a_formula():
    assert FORMULAS.keys() | PPO.keys() == CASES.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_loss_and_gradient_are_those_of_the_formula(name):
    found = gradients_of(CASES[name], micro_batch_tokens=60)
    expected = check_against(FORMULAS[name], CASES[name], found)
    with planted_fault("a gradient that is 0.1 % longer"):
        FP32_MODEL_GRADIENT.check({n: g * 1.001 for n, g in found[0].items()}, expected)


WRONG = {
    "weights that spare the KL": ("grpo, corrected", corrected_grpo, {"weighs_kl": False}),
    "a sample that left without its KL": ("grpo, corrected", corrected_grpo, {"drops_kl": True}),
    "penalties in the divisor": ("grpo, kl in the reward", grpo_with_kl_in_the_reward, {"is_in_the_divisor": True}),
    "a baseline where one is left": ("otb", otb, {"counts_the_last": True}),
    "a rejected token in the record's mean": ("gspo, corrected", corrected_gspo, {"is_of_the_mean": True}),
    "a quantile of each sample": ("grpo, top half of the entropies", grpo_of_uncertain_tokens, {"quantile_of_each": True}),
    "a teacher without its hint": ("sdpo", top_k_distillation, {"reads_hints": False}),
    "moves back that are dropped": ("dppo", dppo, {"drops_all": True}),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_another_formula_would_be_noticed(fault):
    name, formula, how = WRONG[fault]
    gradient, metrics = gradients_of(CASES[name])
    columns = Columns(CASES[name])
    formula(columns, **how).backward()
    with planted_fault(fault):
        FP32_MODEL_GRADIENT.check(gradient, {n: p.grad for n, p in columns.model.named_parameters()})  # fmt: skip
    assert np.isfinite(metrics.loss)


def test_what_the_formulas_exercise_does_happen():
    # A bound that no sample reaches would test nothing.
    for name in ("grpo, corrected", "gspo, corrected"):
        metrics = gradients_of(CASES[name])[1]
        corrected = metrics.corrections
        assert min(corrected.fraction_rejected_low, corrected.fraction_rejected_high) > 0
        assert corrected.fraction_truncated_high > 0
        assert 0 < corrected.num_vetoed_samples < corrected.num_samples
        assert corrected.weight_after.mean == pytest.approx(1.0)
        assert 0 < metrics.off_policy_fraction < 1
    assert 0 < gradients_of(CASES["grpo, bypass, off-policy mask"])[1].off_policy_fraction < 1
    bounded = ("grpo, bypass, off-policy mask", "dr_grpo", "dapo", "gspo", "cispo", "sequence ratio, cispo", "dppo", "dppo, kl")  # fmt: skip
    for name in bounded:
        assert 0 < gradients_of(CASES[name])[1].policy.clip_fraction < 1, name
    for name in ("sapo", "drpo", "rloo"):
        assert gradients_of(CASES[name])[1].policy.clip_fraction == 0, name


# ------------------------------------------------------------ the KL in the loss


def all_next_tokens() -> list:
    """Every token of the vocabulary after one prompt, one to three times: exactly what a policy mu of those shares drew."""
    counts = np.random.default_rng(0).integers(1, 4, VOCAB)
    drawn = np.repeat(np.arange(VOCAB), counts)
    log_shares = np.log(counts / counts.sum())
    return [
        make_sample([5, 6, 7], [v], index=i, rollout_log_probs=[log_shares[v]]).scored(1.0)
        for i, v in enumerate(drawn.tolist())
    ]


@pytest.mark.parametrize("kind", ["k2", "k3"])
def test_the_kl_in_the_loss_has_the_gradient_of_the_kl_whoever_drew_the_tokens(kind, monkeypatch):
    """KL(policy || reference), exactly, from tokens of another policy: the importance ratio makes it so."""
    samples = all_next_tokens()
    of = Case(Algorithm.model_validate({"kl": {"kind": kind, "coefficient": 0.7}}), BYPASS)
    model, frozen = tiny_model("qwen3"), tiny_model("qwen3", seed=1)
    ours, theirs = (log_softmax_alone(m, samples[0])[0] for m in (model, frozen))
    exact = 0.7 * (ours.exp() * (ours - theirs.detach())).sum()
    exact.backward()
    expected = {n: p.grad for n, p in model.named_parameters()}
    gradient, metrics = gradients_of(of, samples)
    FP32_MODEL_GRADIENT.check(gradient, expected)
    assert metrics.policy.ratio_max > 1.5
    if kind == "k3":
        FP32_MODEL.check(metrics.loss, exact.item())
    monkeypatch.setattr(objective_module, "kl_loss", lambda estimate_T, *_, **__: estimate_T)
    with planted_fault("no importance ratio"):
        FP32_MODEL_GRADIENT.check(gradients_of(of, samples)[0], expected)


def test_on_policy_k3_needs_the_gradient_of_its_ratio(monkeypatch):
    """With old log-probs of the trainer every ratio is 1, yet without its gradient k3's is that of KL(reference || policy)."""
    of = case("grpo", kl=IN_LOSS)

    def formula(c, *, is_live):
        ratios = [c.ratio(i) if is_live else c.ratio(i).detach() for i in range(len(c))]
        return grpo(c) + 0.1 * over_tokens(c, [r * k3(c, i) for i, r in enumerate(ratios)])

    found = gradients_of(of)
    check_against(formula, of, found, is_live=True)
    with planted_fault("a detached ratio"):
        check_against(formula, of, found, is_live=False)


# ------------------------------------------------------------ samples that left the policy


def test_off_policy_kl_compares_with_the_engine_and_spares_the_kl():
    """One update, old log-probs of the trainer: samples that the engine drew 2 nats a token more easily lose the policy's term."""
    of = case("grpo", kl=IN_LOSS, corrections={"off_policy_kl": 1.0})
    fresh = samples_for(of.algorithm)
    scored = zip(fresh, score(fresh), strict=True)
    samples = [
        replace(s, rollout_log_probs=np.minimum(x + 2.0 * (i % 2), 0.0))
        for i, (s, x) in enumerate(scored)
    ]

    def formula(c, *, drops_policy=True, drops_kl=False):
        terms = []
        for i, surrogate in enumerate(clip_terms(c, c.advantages)):
            left = has_left(c, i)
            assert left == (i % 2 == 1 and c.advantages[i] < 0)
            kl = 0.1 * c.ratio(i) * k3(c, i)
            terms.append(surrogate * (not (left and drops_policy)) + kl * (not (left and drops_kl)))
        return over_tokens(c, terms)

    found = gradients_of(of, samples)
    check_against(formula, of, found, samples)
    assert 0 < found[1].off_policy_fraction < 0.5
    with planted_fault("it keeps everything, since the old policy is the present one"):
        check_against(formula, of, found, samples, drops_policy=False)
    with planted_fault("it drops the KL too"):
        check_against(formula, of, found, samples, drops_kl=True)


# ------------------------------------------------------------ a critic


def values_alone(model, sample) -> torch.Tensor:
    """float32 [L]: the critic's value before each trainable token."""
    rows = PackedRows([sample.token_ids.tolist()])
    attention = rows.attention(model.trunk.config.attention_scale)
    hidden_TD = model.trunk(rows.token_ids_T, rows.positions_T, attention)
    return (hidden_TD @ model.value_head)[:-1][torch.tensor(sample.loss_mask[1:])]


def generalised_advantages(values, rewards, *, discount, gae_lambda):
    """Backwards over a sample's trainable tokens, each with a reward."""
    found, next_value, next_advantage = np.zeros(len(values)), 0.0, 0.0
    for t in reversed(range(len(values))):
        delta = rewards[t] + discount * next_value - values[t]
        next_advantage = found[t] = delta + discount * gae_lambda * next_advantage
        next_value = values[t]
    return found


PPO = {
    "ppo": {"discount": 0.98, "gae_lambda": 0.9, "critic_lambda": 1.0, "std": "batch", "penalty": 0.0},
    "ppo, kl in the reward": {"discount": 1.0, "gae_lambda": 1.0, "critic_lambda": 1.0, "std": "none", "penalty": 0.1},
}  # fmt: skip
"""What the cases say, and their defaults: both lambdas are 1."""
FAULTS = {
    "ppo": {"token": {}, "lambda": {"gae_lambda": 0.91}, "critic's lambda": {"critic_lambda": 0.9}},
    "ppo, kl in the reward": {"penalty": {"penalty": 0.0}, "lambda": {"gae_lambda": 0.95}},
}


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name in PPO for fault in (None, *FAULTS[name])]
)
def test_ppo_and_its_critic_are_those_of_the_formula(name, fault):
    gradient, metrics = gradients_of(CASES[name], micro_batch_tokens=60)
    columns, critic = Columns(CASES[name]), trainer_of(CASES[name]).critic.model
    settings = PPO[name] | (FAULTS[name][fault] if fault else {})
    for parameter in critic.parameters():
        parameter.grad = None
    values = [values_alone(critic, s) for s in columns.samples]
    if fault == "token":
        values = [v.roll(1) for v in values]

    def estimates(gae_lambda):
        found = []
        for i, sample in enumerate(columns.samples):
            rewards = -settings["penalty"] * (columns.old[i] - columns.ref[i]).numpy()
            rewards[-1] += sample.reward
            found.append(generalised_advantages(values[i].tolist(), rewards, discount=settings["discount"], gae_lambda=gae_lambda))  # fmt: skip
        return [torch.from_numpy(column) for column in found]

    raw, beyond_values = (estimates(settings[key]) for key in ("gae_lambda", "critic_lambda"))
    advantages = normalised(raw) if settings["std"] == "batch" else raw
    policy_loss = over_tokens(columns, clip_terms(columns, advantages))
    policy_loss.backward()
    # A target is an estimate plus the value of its token.
    errors = [(v - (v.detach() + a)) ** 2 / 2 for v, a in zip(values, beyond_values, strict=True)]
    value_loss = over_tokens(columns, errors)
    value_loss.backward()
    expected = {n: p.grad for n, p in columns.model.named_parameters()}
    expected |= {f"critic.{n}": p.grad for n, p in critic.named_parameters()}

    def check():
        FP32_MODEL.check(metrics.loss, policy_loss.item())
        FP32_MODEL.check(metrics.critic.loss, value_loss.item())
        FP32_MODEL_GRADIENT.check(gradient, expected)

    if fault is None:
        check()
    else:
        with planted_fault(f"another {fault}"):
            check()
