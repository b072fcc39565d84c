"""Every metric name, declared once with its meaning and its reducer over the values of a step.

Names are ``room/thing/stat``; units other than tokens and nats are in the name. A line of ``metrics.jsonl`` also has the
keys ``step`` and ``weight_version``. A metric without a value in a step (no evaluation, no valid sample) is absent:
never 0, never NaN.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from zerogap.errors import NumericsError
from zerogap.types import Outcome

_REWARD_PART = re.compile(r"reward/.+/mean")
_EVALUATED_PART = re.compile(r"eval/(sampled/)?reward/.+/mean")
"""The mean of one named part of the reward; recipes and reward functions choose the names."""
Reducer = Literal["mean", "max", "min", "sum", "last"]
GAP_SOURCES = ("sampling", "numbers", "routing", "staleness", "tokens")
"""The sources of the gap, in the order of the ledger's stages."""
WEIGHED_SOURCES = ("numbers", "routing", "staleness")
"""The sources inside old_log_probs - rollout_log_probs: what policy ratios and importance weights can see. Not sampling,
because both log-probs are over the whole vocabulary, and not tokens, because both are of the sampled ids."""
AlarmKind = Literal["gap", "entropy", "gradient", "truncation", "signal", "failures", "numerics"]
ALARM_KINDS: tuple[AlarmKind, ...] = get_args(AlarmKind)


@dataclass(frozen=True)
class Metric:
    """One declared metric."""

    name: str
    reducer: Reducer
    """How the values of a step become one; a mean is weighted by the counts that come with the values."""
    description: str


def metric(name: str) -> Metric:
    """The declaration of ``name``.

    Raises:
        KeyError: the name is not declared.
    """
    if is_reward_part(name) or _EVALUATED_PART.fullmatch(name):
        return Metric(name, "mean", "mean of one named part of the reward over valid samples")
    if name not in METRICS:
        msg = f"metric {name!r} is not declared; add it to zerogap.obs.metrics"
        raise KeyError(msg)
    return METRICS[name]


def is_reward_part(name: str) -> bool:
    """Whether the metric is the mean of a named part of the reward."""
    return _REWARD_PART.fullmatch(name) is not None


class StepMetrics:
    """Collects the values of one step."""

    def __init__(self) -> None:
        self._values: dict[str, list[tuple[float, float]]] = {}

    def add(self, name: str, value: float, *, weight: float = 1.0) -> None:
        """Add one value of a declared metric.

        Args:
            name: a declared name.
            value: a finite number.
            weight: for a mean, the number of items that ``value`` is the mean of; with 0 the value is ignored.

        Raises:
            KeyError: the name is not declared.
            NumericsError: the value is NaN or infinite.
        """
        metric(name)
        if weight == 0:
            return
        if not math.isfinite(value):
            msg = f"metric {name} = {value}: not a finite number; look for the first NaN in this step's rollouts"
            raise NumericsError(msg)
        self._values.setdefault(name, []).append((value, weight))

    def add_all(self, values: Mapping[str, float]) -> None:
        """Add several values of weight 1."""
        for name, value in values.items():
            self.add(name, value)

    def reduce(self) -> dict[str, float]:
        """One number per metric, in the order of declaration."""
        reduced = {n: _REDUCERS[metric(n).reducer](given) for n, given in self._values.items()}
        order = {name: i for i, name in enumerate(METRICS)}
        return dict(sorted(reduced.items(), key=lambda item: order.get(item[0], len(order))))


def _weighted_mean(values: Sequence[tuple[float, float]]) -> float:
    total = math.fsum(weight for _, weight in values)
    return math.fsum(value * weight for value, weight in values) / total


_REDUCERS: dict[Reducer, Callable[[Sequence[tuple[float, float]]], float]] = {
    "mean": _weighted_mean,
    "max": lambda values: max(value for value, _ in values),
    "min": lambda values: min(value for value, _ in values),
    "sum": lambda values: sum(value for value, _ in values),
    "last": lambda values: values[-1][0],
}


def _declare() -> Iterator[Metric]:
    for name, reducer, description in _SINGLE:
        yield Metric(name, reducer, description)
    for source in GAP_SOURCES:
        yield Metric(
            f"gap/{source}/open/signed_mean",
            "mean",
            f"mean signed difference from {source}, with replays, nats per token; the five add up to gap/total/signed_mean",
        )
        seen = "in" if source in WEIGHED_SOURCES else "not in"
        for view, cost in (
            ("raw", "without replays"),
            ("open", f"with replays; {seen} the ratios and weights of the loss"),
        ):
            yield Metric(
                f"gap/{source}/{view}/mean",
                "mean",
                f"mean |difference| from {source}, {cost}, nats per token",
            )
            yield Metric(
                f"gap/{source}/{view}/max", "max", f"largest |difference| from {source}, {cost}"
            )
    for alarm in ALARM_KINDS:
        yield Metric(
            f"alarm/{alarm}", "last", f"1 while the alarm of [watch] for {alarm} is on, else 0"
        )
    for kind in Outcome:
        yield Metric(f"outcome/{kind}", "sum", f"samples that ended as {kind}")


_SINGLE: tuple[tuple[str, Reducer, str], ...] = (
    ("reward/mean", "mean", "over valid samples"),
    ("reward/std", "last", "population standard deviation over valid samples"),
    ("reward/min", "min", "over valid samples"),
    ("reward/max", "max", "over valid samples"),
    ("group/count", "sum", "groups with at least one valid sample"),
    ("group/without_signal", "sum", "groups of two or more with equal rewards: they train nothing"),
    ("group/alone", "sum", "groups with one valid sample: it has no baseline and trains nothing"),
    ("excluded/invalid_outcome", "sum", "samples left out because they failed or were aborted"),
    ("excluded/no_loss_tokens", "sum", "samples left out because no token in them trains"),
    ("excluded/masked", "sum", "truncated samples that do not train (sampling_policy.truncated), but count in their group"),
    ("rollout/num_samples", "sum", "samples, failed ones included"),
    ("rollout/num_rounds", "sum", "sampling rounds; more than one if groups without a signal were replaced"),
    ("rollout/num_groups", "sum", "groups drawn in all rounds, under dynamic sampling"),
    ("rollout/num_groups_surplus", "sum", "groups with a signal beyond those that the step needs: they do not train"),
    ("rollout/num_groups_without_signal", "sum", "groups without the signal of sampling_policy.dynamic_sampling"),
    ("rollout/hinted_fraction", "mean", "share of trainable samples that the teacher has a hint for (teacher.hint)"),
    ("rollout/prompt_len/mean", "mean", "prompt tokens per sample"),
    ("rollout/completion_len/mean", "mean", "sampled tokens per sample"),
    ("rollout/completion_len/max", "max", "sampled tokens of the longest sample"),
    ("rollout/truncated_fraction", "mean", "share of samples that the token limit ended"),
    ("rollout/failed_fraction", "mean", "share of samples without a reward, because it or something before it failed: they train nothing"),
    ("staleness/mean", "mean", "trainer's version minus the sample's oldest, over samples"),
    ("staleness/max", "max", "the same, largest"),
    ("gap/total/mean", "mean", "mean |sum of the open sources| of an audited token: from the distribution that drew it to the policy that trains; the loss's ratios and weights contain all of it but sampling"),
    ("gap/total/max", "max", "largest |sum of the open sources| of an audited token"),
    ("gap/total/signed_mean", "mean", "mean signed sum of the open sources: shows a bias that |.| hides"),
    ("gap/total/k3", "mean", "mean exp(d) - 1 - d of the open sum: estimates KL(engine || trainer)"),
    ("gap/num_tokens", "sum", "audited tokens with a log-prob at every stage of the ledger"),
    ("gap/num_samples", "sum", "audited samples"),
    ("gap/recheck/max", "max", "largest |difference| between stage a4 of one sample and the same scored alone, nats; 0 with exact numerics, or the run stops"),
    ("gap/num_unattributed", "sum", "audited tokens whose weights are not available: in no other gap metric"),
    ("gap/tokens/differing_share", "mean", "share of audited tokens whose id changes on re-tokenisation"),
    ("gap/trained/mean", "mean", "mean |trainer's - engine's log-prob within its kept set| of all tokens that the trainer scored before their update"),
    ("gap/trained/max", "max", "largest |trainer's - engine's log-prob| of those"),
    ("gap/trained/num_tokens", "sum", "tokens that the trainer scored before their update"),
    ("policy/clip_fraction", "mean", "share of tokens where a clip bound decided the loss"),
    ("policy/ratio/mean", "mean", "exp(current - old log-prob) over tokens of the loss"),
    ("policy/ratio/min", "min", "smallest policy ratio"),
    ("policy/ratio/max", "max", "largest policy ratio"),
    ("policy/entropy", "mean", "entropy of the next-token distribution at the sampling temperature"),
    ("policy/kl_to_old", "mean", "k3 of the current policy against the one at the start of the step"),
    ("policy/kl_to_rollout", "mean", "k3 of the current policy against the one that sampled"),
    ("policy/kl_to_reference", "mean", "estimate of KL to the reference, by kl.kind"),
    ("policy/kl_to_teacher", "mean", "estimate of KL to the teacher: at sampled tokens, or over its top ids"),
    ("policy/off_policy_fraction", "mean", "share of tokens that corrections.off_policy_kl dropped"),
    # Measured whether corrections are on or off, over trained tokens: w = exp(old - rollout log-prob).
    ("mismatch/weight/before/mean", "mean", "w, at the level of corrections.weight (default: token)"),
    ("mismatch/weight/before/min", "min", "smallest w"),
    ("mismatch/weight/before/max", "max", "largest w"),
    ("mismatch/weight/before/effective_share", "mean", "effective sample size of w, as a share of the tokens"),
    ("mismatch/weight/after/mean", "mean", "factor on the policy loss; 1 without corrections.weight"),
    ("mismatch/weight/after/min", "min", "smallest factor"),
    ("mismatch/weight/after/max", "max", "largest factor"),
    ("mismatch/weight/after/effective_share", "mean", "effective sample size of the factor, as a share of the tokens"),
    ("mismatch/truncated/low", "mean", "share of tokens with w below corrections.weight.low"),
    ("mismatch/truncated/high", "mean", "share of tokens with w above corrections.weight.high"),
    ("mismatch/rejected/low", "mean", "share of tokens that corrections.mask dropped because w is too small"),
    ("mismatch/rejected/high", "mean", "share of tokens that corrections.mask dropped because w is too large"),
    ("mismatch/vetoed/num_tokens", "sum", "tokens with w below corrections.veto"),
    ("mismatch/vetoed/num_samples", "sum", "samples dropped because of such a token"),
    ("mismatch/kept_fraction", "mean", "share of tokens that corrections left in the loss"),
    ("mismatch/log_perplexity/rollout", "mean", "of the engine: mean over samples of the mean -log-prob, nats"),
    ("mismatch/log_perplexity/old", "mean", "the same of the trainer"),
    ("mismatch/log_perplexity/gap", "mean", "trainer's minus engine's"),
    ("mismatch/k1", "mean", "mean rollout - old log-prob: estimates KL(engine || trainer), unbiased"),
    ("mismatch/k3", "mean", "mean exp(d) - 1 - d: the same, never negative"),
    ("mismatch/chi2/token", "mean", "mean w**2 - 1: estimates chi-squared(trainer || engine) of a token"),
    ("mismatch/chi2/sequence", "mean", "the same over samples, with w = exp(sum of d)"),
    ("acceptance/inference_gain", "mean", "estimate of how much better the engine's policy is than the trainer's after the step before, in standard deviations of the reward"),
    ("acceptance/tolerance", "last", "loss that an update may cost the engine's policy, in the same unit"),
    ("acceptance/is_undone", "last", "1 if this step undid the one before, else 0"),
    ("critic/loss", "mean", "half the squared error of the values, over updates"),
    ("critic/grad_norm", "max", "norm of the critic's gradient before clipping, largest of the step's updates"),
    ("critic/value/mean", "mean", "mean value of trained tokens at the start of the step"),
    ("critic/return/mean", "mean", "mean target of the values"),
    ("critic/explained_variance", "mean", "1 - var(returns - values) / var(returns): 1 is perfect, 0 a constant"),
    ("critic/clip_fraction", "mean", "share of values that advantage.value_clip clipped"),
    ("critic/is_alone", "last", "1 while only the critic trains (warm-up), else 0"),
    ("preference/accuracy", "mean", "share of pairs whose preferred answer has the larger reward"),
    ("preference/margin/mean", "mean", "reward of the preferred answer minus the other, with reward beta (log pi - log ref), nats"),
    ("preference/chosen_reward/mean", "mean", "reward of preferred answers"),
    ("preference/rejected_reward/mean", "mean", "reward of the others"),
    ("preference/num_pairs", "sum", "pairs in the loss"),
    ("train/loss", "mean", "value of the objective, over updates"),
    ("train/grad_norm", "max", "norm of the gradient before clipping, largest of the step's updates"),
    ("train/learning_rate", "last", "of the step's last update"),
    ("train/num_loss_tokens", "sum", "tokens in the loss"),
    ("train/num_samples", "sum", "samples in the loss"),
    ("train/num_rows", "sum", "token rows of the micro-batches; shared prefixes count once"),
    ("train/num_rows_saved", "sum", "token rows saved by sharing prefixes"),
    ("train/saved_fraction", "mean", "train/num_rows_saved over the rows without sharing"),
    ("train/num_rows_repeated", "sum", "token rows computed again because a group was split over micro-batches"),
    ("train/wasted_fraction", "mean", "train/num_rows_repeated over train/num_rows"),
    ("train/num_rows_without_gradient", "sum", "token rows without a backward pass, because their advantages are all 0"),
    ("train/num_micro_batches", "sum", "forward and backward passes"),
    ("train/micro_batch_fill", "mean", "token rows over the capacity of the micro-batches"),
    ("train/num_updates", "sum", "optimizer updates"),
    ("train/num_updates_without_signal", "sum", "updates whose gradient was exactly 0: weights and moments stayed"),
    ("train/old/num_taken", "sum", "tokens of later updates whose old log-prob is the engine's"),
    ("train/old/num_audited", "sum", "such tokens that the trainer scored too, to check that both are equal to the bit"),
    ("train/old/num_different", "sum", "audited tokens that were not equal; the trainer then scores all"),
    ("train/tokens_per_s", "last", "train/num_rows per second of step/train_s"),
    ("train/pack_s", "sum", "packing samples into micro-batches"),
    ("train/old_s", "sum", "old log-probs that are needed before the first update, with the audit"),
    ("train/reference_s", "sum", "log-probs of the reference model"),
    ("train/teacher_s", "sum", "log-probs of the teacher"),
    ("train/values_s", "sum", "the critic's values at the start of the step"),
    ("train/preferences_s", "sum", "log-probs before each update (DPO)"),
    ("train/forward_s", "sum", "forward passes with gradient"),
    ("train/backward_s", "sum", "backward passes"),
    ("train/optimizer_s", "sum", "clipping and the optimizer"),
    ("train/critic_s", "sum", "forward, backward and updates of the critic"),
    ("engine/tokens_per_s", "last", "sampled tokens per second of step/generate_s"),
    ("engine/num_steps", "sum", "forward passes"),
    ("engine/num_sampled_tokens", "sum", "sampled tokens"),
    ("engine/num_prefill_tokens", "sum", "prompt tokens computed for the first time"),
    ("engine/num_decode_tokens", "sum", "sampled tokens computed for the first time"),
    ("engine/num_shared_decode_tokens", "sum", "sampled tokens not computed, because a sibling with the same tokens was"),
    ("engine/num_recomputed_tokens", "sum", "tokens computed again after a retraction or a weight update"),
    ("engine/num_cached_tokens", "sum", "tokens not computed: found in the prefix cache, or computed by a sibling"),
    ("engine/num_retractions", "sum", "times a sequence gave its pages back, to be computed again later"),
    ("step/time_s", "last", "the whole step"),
    ("step/generate_s", "sum", "sampling"),
    ("step/reward_s", "sum", "grading"),
    ("step/audit_s", "sum", "the ledger, with its own forward passes"),
    ("step/train_s", "sum", "forward, backward and optimizer"),
    ("step/publish_s", "sum", "publishing the new weights to the engine"),
    ("step/evaluate_s", "sum", "evaluation"),
    ("step/checkpoint_s", "sum", "saving the checkpoint of the step before"),
    ("step/save_rollouts_s", "sum", "writing rollouts to disk"),
    ("memory/peak_bytes", "max", "largest resident memory of the process so far"),
    ("eval/reward/mean", "mean", "over valid answers: greedy, or sampled when evaluate.greedy is off"),
    ("eval/sampled/reward/mean", "mean", "over valid sampled completions"),
    ("eval/sampled/best/mean", "mean", "best reward among a prompt's sampled completions, over prompts"),
    ("eval/num_prompts", "last", "evaluation prompts"),
    ("eval/num_failed", "sum", "evaluation completions without a reward"),
    ("eval/completion_len/mean", "mean", "sampled tokens of an evaluation completion"),
    ("eval/truncated_fraction", "mean", "share of evaluation completions that the token limit ended"),
)  # fmt: skip

METRICS: dict[str, Metric] = {declared.name: declared for declared in _declare()}
"""Declared name -> metric; ``metric`` also knows ``reward/<name>/mean`` and the same under ``eval/`` and ``eval/sampled/``."""
