"""What a run says to the person who waits, as sentences."""

from zerogap.rollout import Rollouts
from zerogap.train import OldLogProbAudit, TrainMetrics
from zerogap.types import SamplingParams

_MUCH_WASTE = 0.1


def describe_sharing(trained: TrainMetrics) -> str:
    """What sharing prefixes saved."""
    alone, wasted = trained.num_rows + trained.num_rows_saved, trained.wasted_fraction
    cure = ": a larger train.micro_batch_tokens cuts groups less" if wasted > _MUCH_WASTE else ""
    return (
        f"training computes {trained.num_rows:,} rows ({wasted:.1%} of them twice{cure}); "
        f"every sample by itself would need {alone:,}: {trained.saved_fraction:.0%} saved"
    )


def describe_failures(rollouts: Rollouts) -> str:
    """Why samples cannot train."""
    counts = {kind: n for kind, n in rollouts.outcome_counts.items() if n and not kind.is_valid}
    return ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no loss tokens"


def warning_of_truncation(sampling: SamplingParams) -> str | None:
    """That a cut-down distribution is sampled; None if it is not."""
    if not sampling.truncates:
        return None
    given = f"top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = {sampling.min_p}"
    return (
        f"warning: rollout.sampling truncates ({given}), so tokens are drawn from another distribution than the "
        "one the loss scores; gap/sampling says how far apart they are (top_k = -1, top_p = 1, min_p = 0 closes it)"
    )


def warning_of_audit(step: int, audit: OldLogProbAudit) -> str | None:
    """That log-probs which should be equal are not; None if they are."""
    if not audit.num_different:
        return None
    return (
        f"warning: step {step}: {audit.num_different} of {audit.num_audited} log-probs that should be the engine's "
        f"to the bit are not ({audit.first_difference}); the trainer's own were computed and used for all. Please report it: "
        'numerics = "exact" promises that this cannot happen'
    )
