"""Reports of trainer and engine as declared metrics."""

from collections.abc import Mapping, Sequence

from zerogap.algorithms import Acceptance, CorrectionStatistics
from zerogap.engine import EngineStats
from zerogap.obs import StepMetrics
from zerogap.train import CriticMetrics, PreferenceMetrics, TrainMetrics
from zerogap.types import Sample

_ENGINE_COUNTS = (
    "num_steps",
    "num_sampled_tokens",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_shared_decode_tokens",
    "num_recomputed_tokens",
    "num_cached_tokens",
    "num_retractions",
)
_TRAIN_FIELDS = (
    "loss",
    "grad_norm",
    "learning_rate",
    "num_loss_tokens",
    "num_samples",
    "num_rows",
    "num_rows_saved",
    "saved_fraction",
    "num_rows_repeated",
    "wasted_fraction",
    "num_rows_without_gradient",
    "num_micro_batches",
    "micro_batch_fill",
    "num_updates",
    "num_updates_without_signal",
)
_TIMED = ("generate", "reward", "audit", "train", "publish", "evaluate", "checkpoint", "save_rollouts")  # fmt: skip
_RATES = (
    ("engine/tokens_per_s", "engine/num_sampled_tokens", "step/generate_s"),
    ("train/tokens_per_s", "train/num_rows", "step/train_s"),
)


def add_engine_metrics(
    metrics: StepMetrics,
    samples: Sequence[Sample],
    before: EngineStats | None,
    after: EngineStats | None,
) -> None:
    """``engine/*`` of one step's generation, except rates. For an engine without counters: only the sampled tokens."""
    if before is None or after is None:
        num_drawn = sum(int((sample.weight_version >= 0).sum()) for sample in samples)
        metrics.add("engine/num_sampled_tokens", num_drawn)
        return
    stats = after - before
    metrics.add_all({f"engine/{name}": getattr(stats, name) for name in _ENGINE_COUNTS})


def add_times(metrics: StepMetrics, seconds: Mapping[str, float]) -> None:
    """``step/*`` from the seconds of the step's spans."""
    for name in _TIMED:
        if name in seconds:
            metrics.add(f"step/{name}_s", seconds[name])
    if "step" in seconds:
        metrics.add("step/time_s", seconds["step"])


def with_rates(reduced: Mapping[str, float]) -> dict[str, float]:
    """A step's metrics and their rates: one metric divided by another."""
    rates = {
        rate: reduced[count] / reduced[seconds]
        for rate, count, seconds in _RATES
        if count in reduced and reduced.get(seconds)
    }
    return {**reduced, **rates}


def add_train_metrics(metrics: StepMetrics, trained: TrainMetrics) -> None:
    """``train/*``, ``policy/*``, ``group/*``, ``excluded/*`` and the metrics of the loss, except rates."""
    if trained.groups is not None:
        metrics.add("group/count", trained.groups.num_groups)
        metrics.add("group/alone", trained.groups.num_alone)
        metrics.add("group/without_signal", trained.groups.num_without_signal)
    policy = trained.policy
    metrics.add_all(
        {
            **{f"train/{name}": getattr(trained, name) for name in _TRAIN_FIELDS},
            **{f"train/{part}_s": seconds for part, seconds in trained.seconds.items()},
            "policy/ratio/mean": policy.ratio_mean,
            "policy/ratio/min": policy.ratio_min,
            "policy/ratio/max": policy.ratio_max,
            "policy/clip_fraction": policy.clip_fraction,
            "policy/entropy": policy.entropy,
            "policy/kl_to_old": policy.kl_to_old,
        }
    )
    for name in ("num_taken", "num_audited", "num_different") if trained.num_updates > 1 else ():
        metrics.add(f"train/old/{name}", getattr(trained.audit, name))
    for other in ("rollout", "reference"):
        if (kl := getattr(trained, f"kl_to_{other}")) is not None:
            metrics.add(f"policy/kl_to_{other}", kl)
    metrics.add_all(loss_metrics(trained))
    for reason, count in trained.excluded.items():
        metrics.add(f"excluded/{reason}", count)


def add_staleness(metrics: StepMetrics, samples: Sequence[Sample], weight_version: int) -> None:
    """``staleness/*`` from each sample's oldest sampled token."""
    for sample in samples:
        sampled = sample.weight_version[sample.weight_version >= 0]
        if len(sampled):
            age = weight_version - int(sampled.min())
            metrics.add("staleness/mean", age)
            metrics.add("staleness/max", age)


def loss_metrics(trained: TrainMetrics) -> dict[str, float]:
    """``mismatch/*``, ``critic/*``, ``preference/*`` and ``policy/kl_to_teacher``, if the loss has them."""
    found = {} if trained.kl_to_teacher is None else {"policy/kl_to_teacher": trained.kl_to_teacher}
    if trained.corrections is not None:
        found |= correction_metrics(trained.corrections)
        found["policy/off_policy_fraction"] = trained.off_policy_fraction
    if trained.critic is not None:
        found |= _critic_metrics(trained.critic)
    if trained.preferences is not None:
        found |= _preference_metrics(trained.preferences)
    return found


def acceptance_metrics(found: Acceptance | None) -> dict[str, float]:
    """``acceptance/*``: how the step before was judged; {} if it was not."""
    if found is None:
        return {}
    return {
        "acceptance/inference_gain": found.inference_gain,
        "acceptance/tolerance": found.tolerance,
        "acceptance/is_undone": float(not found.is_accepted),
    }


def correction_metrics(found: CorrectionStatistics) -> dict[str, float]:
    """``mismatch/*``."""
    return {
        **{
            f"mismatch/weight/{when}/{name}": getattr(weights, name)
            for when, weights in (("before", found.weight_before), ("after", found.weight_after))
            for name in ("mean", "min", "max", "effective_share")
        },
        "mismatch/truncated/low": found.fraction_truncated_low,
        "mismatch/truncated/high": found.fraction_truncated_high,
        "mismatch/rejected/low": found.fraction_rejected_low,
        "mismatch/rejected/high": found.fraction_rejected_high,
        "mismatch/vetoed/num_tokens": found.num_vetoed_tokens,
        "mismatch/vetoed/num_samples": found.num_vetoed_samples,
        "mismatch/kept_fraction": found.fraction_kept,
        "mismatch/log_perplexity/rollout": found.rollout_log_perplexity,
        "mismatch/log_perplexity/old": found.old_log_perplexity,
        "mismatch/log_perplexity/gap": found.log_perplexity_gap,
        "mismatch/k1": found.k1,
        "mismatch/k3": found.k3,
        "mismatch/chi2/token": found.chi2_token,
        "mismatch/chi2/sequence": found.chi2_sequence,
    }


def _critic_metrics(critic: CriticMetrics) -> dict[str, float]:
    found = {
        "critic/loss": critic.loss,
        "critic/grad_norm": critic.grad_norm,
        "critic/value/mean": critic.value_mean,
        "critic/return/mean": critic.return_mean,
        "critic/clip_fraction": critic.clip_fraction,
        "critic/is_alone": float(critic.is_alone),
    }
    if critic.explained_variance is not None:
        found["critic/explained_variance"] = critic.explained_variance
    return found


def _preference_metrics(preferences: PreferenceMetrics) -> dict[str, float]:
    return {
        "preference/accuracy": preferences.accuracy,
        "preference/margin/mean": preferences.margin_mean,
        "preference/chosen_reward/mean": preferences.chosen_reward_mean,
        "preference/rejected_reward/mean": preferences.rejected_reward_mean,
        "preference/num_pairs": preferences.num_pairs,
    }
