"""What a loss and its corrections report beside what all losses do, under the declared metric names."""

from collections.abc import Mapping

from zerogap.algorithms import CorrectionStatistics
from zerogap.train import CriticMetrics, PreferenceMetrics, TrainMetrics


def loss_metrics(trained: TrainMetrics) -> dict[str, float]:
    """``mismatch/*``, ``critic/*``, ``preference/*`` and the policy's distance to a teacher: those that there are."""
    found = {} if trained.kl_to_teacher is None else {"policy/kl_to_teacher": trained.kl_to_teacher}
    if trained.corrections is not None:
        found |= correction_metrics(trained.corrections)
        found["policy/off_policy_fraction"] = trained.off_policy_fraction
    if trained.critic is not None:
        found |= _critic_metrics(trained.critic)
    if trained.preferences is not None:
        found |= _preference_metrics(trained.preferences)
    return found


def correction_metrics(found: CorrectionStatistics) -> dict[str, float]:
    """``mismatch/*``."""
    return {
        **_weights("before", found),
        **_weights("after", found),
        "mismatch/truncated/low": found.fraction_truncated_low,
        "mismatch/truncated/high": found.fraction_truncated_high,
        "mismatch/rejected/low": found.fraction_rejected_low,
        "mismatch/rejected/high": found.fraction_rejected_high,
        "mismatch/vetoed/num_tokens": found.num_vetoed_tokens,
        "mismatch/vetoed/num_records": found.num_vetoed_records,
        "mismatch/kept_fraction": found.fraction_kept,
        "mismatch/log_perplexity/rollout": found.rollout_log_perplexity,
        "mismatch/log_perplexity/old": found.old_log_perplexity,
        "mismatch/log_perplexity/gap": found.log_perplexity_gap,
        "mismatch/k1": found.k1,
        "mismatch/k3": found.k3,
        "mismatch/chi2/token": found.chi2_token,
        "mismatch/chi2/sequence": found.chi2_sequence,
    }


def _weights(when: str, found: CorrectionStatistics) -> Mapping[str, float]:
    weights = found.weight_before if when == "before" else found.weight_after
    return {
        f"mismatch/weight/{when}/{name}": getattr(weights, name)
        for name in ("mean", "min", "max", "effective_share")
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
