"""Messages that a run prints."""

from zerogap.algorithms import Acceptance
from zerogap.config import RunConfig
from zerogap.rollout import Rollouts
from zerogap.train import OldLogProbAudit, TrainMetrics
from zerogap.types import Exclusion, SamplingParams, exclusion_reason

_MUCH_WASTE = 0.1


def describe_sharing(trained: TrainMetrics) -> str:
    """The share of rows that prefix sharing saved."""
    alone, wasted = trained.num_rows + trained.num_rows_saved, trained.wasted_fraction
    cure = "; a larger train.micro_batch_tokens splits fewer groups" if wasted > _MUCH_WASTE else ""
    return (
        f"prefix sharing: training computes {trained.num_rows:,} of {alone:,} rows "
        f"({trained.saved_fraction:.0%} saved, {wasted:.1%} computed again{cure})"
    )


def describe_failures(rollouts: Rollouts) -> str:
    """Why samples cannot train."""
    counts = {kind: n for kind, n in rollouts.outcome_counts.items() if n and not kind.is_valid}
    reasons = [f"{n} {kind}" for kind, n in counts.items()]
    if masked := sum(exclusion_reason(s) is Exclusion.MASKED for s in rollouts.samples):
        reasons.append(f"{masked} truncated and masked")
    return ", ".join(reasons) or "no loss tokens"


def describe_missing_signal(step: int, trained: TrainMetrics) -> str | None:
    """That updates had a gradient of exactly 0 and were not applied; None if there were none."""
    if not (num := trained.num_updates_without_signal):
        return None
    which = "no sample has" if num == trained.num_updates else f"in {num} of {trained.num_updates} updates no sample has"  # fmt: skip
    return f"step {step}: {which} a gradient, so nothing is applied there: the weights and the optimizer's moments stay"


def warning_of_truncation(sampling: SamplingParams) -> str | None:
    """A warning that sampling is truncated; None if it is not."""
    if not sampling.truncates:
        return None
    given = f"top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = {sampling.min_p}"
    return (
        f"warning: rollout.sampling is truncated ({given}), but the loss scores the full distribution, so "
        "no ratio or weight contains the difference; gap/sampling/* measures it (top_k = -1, top_p = 1, min_p = 0 closes it)"
    )


def describe_corrections(config: RunConfig) -> str | None:
    """Whether samples of another policy are corrected by default, or not at all; None if there are none, or by choice."""
    because = ", ".join(config.open_sources)
    if config.has_default_corrections:
        high = config.applied_corrections.weight.high if config.applied_corrections.weight else None
        return f"corrections: importance weights truncated at {high:g}, because of {because} (corrections.auto = false switches them off)"
    if because and not config.corrections.auto and not config.corrections.needs_old_log_probs:
        return f"warning: corrections.auto = false, with {because}: samples of another policy train uncorrected, and the gradient is biased"
    return None


def describe_acceptance(config: RunConfig) -> str | None:
    """What undoing costs; None if no update is undone."""
    if config.acceptance is None:
        return None
    return "acceptance: updates that cost the engine's policy too much are undone one step later; the weights and moments before each step stay in memory"


def describe_undone(step: int, found: Acceptance) -> str:
    """Why a step undid the one before."""
    return (
        f"step {step}: undid step {step - 1}: its weights cost the engine's policy {-found.inference_gain:.2g} standard deviations of the "
        f"reward, more than the tolerance of {found.tolerance:.2g}; this step's samples do not train"
    )


def warning_of_audit(step: int, audit: OldLogProbAudit) -> str | None:
    """A warning that old log-probs failed their audit; None if all were equal."""
    if not audit.num_different:
        return None
    return (
        f"warning: step {step}: {audit.num_different} of {audit.num_audited} audited log-probs differ from the engine's "
        f"({audit.first_difference}), so the trainer computed and used its own for all. Please report it: "
        'with numerics = "exact" this must not happen'
    )
