"""The probable cause of an alarm in words, and the command that shows more."""

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from zerogap.obs import GAP_SOURCES, AlarmKind
from zerogap.run_folder import RunFolder
from zerogap.types import Outcome

Metrics = Mapping[str, float]

_WHY_FAILED: dict[Outcome, str] = {
    Outcome.VERIFIER_FAILED: "the reward function raised, took too long or returned no usable number; each first reason was printed, and all are in the step's samples.jsonl as outcome_detail",
    Outcome.ENVIRONMENT_FAILED: "the environment raised between turns",
    Outcome.INFRASTRUCTURE_FAILED: "the generator did not return them",
}

_SOURCES = {
    "tokens": "re-encoded text gave other ids than were sampled",
    "routing": "the trainer's router chooses different experts than the engine's",
    "sampling": "sampling is truncated (top_p, top_k, min_p), but the loss scores the full distribution, so no ratio or weight contains it",
    "numbers": "engine and trainer use different kernels or precisions",
    "staleness": "samples come from older weights than the trainer's",
}


def largest_source(metrics: Metrics) -> tuple[str, float] | None:
    """(source, mean nats per token) of the largest open part of the gap; None if nothing was attributed."""
    names = {source: f"gap/{source}/open/mean" for source in GAP_SOURCES}
    measured = {source: metrics[name] for source, name in names.items() if name in metrics}
    return max(measured.items(), key=lambda item: item[1]) if measured else None


def suspect(kind: AlarmKind, metrics: Metrics) -> str:
    """The probable cause, from the other metrics of the step."""
    return _SUSPECTS[kind](metrics)


def command(kind: AlarmKind, run_dir: Path, step: int) -> str:
    """What to run for a closer look at ``step``: its worst tokens, all of its rollouts, its gradient, or its failures by reason."""
    if kind == "failures":
        samples = RunFolder(run_dir).rollouts(step) / "samples.jsonl"
        return (
            f"""grep -oE '"outcome_detail": "[^"]+' {shlex.quote(str(samples))} | sort | uniq -c"""
        )
    if kind in ("gradient", "numerics"):
        return f"zerogap capsule {run_dir} --step {step} step_{step}.zip"
    page = "" if kind == "gap" else f" --html step_{step}.html"
    return f"zerogap audit {run_dir} --step {step}{page}"


def _of_gap(metrics: Metrics) -> str:
    found = largest_source(metrics)
    if found is None or found[1] == 0:
        return "no token was attributed in this step"
    source, mean = found
    return f"{source} (gap/{source}/open/mean = {mean:.3g} nats{_audited(metrics)}): {_SOURCES[source]}"


def _audited(metrics: Metrics) -> str:
    """What the ledger's numbers of the step are over."""
    if not {"gap/num_tokens", "gap/num_samples"} <= metrics.keys():
        return ""
    return f" over {metrics['gap/num_tokens']:,.0f} tokens of {metrics['gap/num_samples']:,.0f} samples"  # fmt: skip


def _of_entropy(metrics: Metrics) -> str:
    if (clipped := metrics.get("policy/clip_fraction", 0.0)) > 0.2:
        return f"updates are too large (policy/clip_fraction = {clipped:.2f}); try a smaller train.learning_rate"
    return f"the policy is nearly certain{_reward(metrics)}; try a smaller train.learning_rate, a [kl] penalty, or harder questions"


def _of_gradient(metrics: Metrics) -> str:
    if (largest := metrics.get("gap/total/max", 0.0)) > 1:
        return f"some tokens are far less likely for the trainer than for the engine (gap/total/max = {largest:.3g} nats)"
    if (stale := metrics.get("staleness/max", 0.0)) > 0:
        return f"samples come from weights {stale:.0f} steps old"
    return "a few samples have rare tokens and large advantages; train.max_grad_norm bounds their effect"


def _of_truncation(metrics: Metrics) -> str:
    length = metrics.get("rollout/completion_len/mean")
    grown = "" if length is None else f" (rollout/completion_len/mean = {length:.0f})"
    return f"completions grow{grown} up to rollout.sampling.max_new_tokens; penalise length (sampling_policy.overlong), or allow more tokens"


def _of_signal(metrics: Metrics) -> str:
    reward = metrics.get("reward/mean")
    if reward is None:
        return "most groups have equal rewards"
    return f"most groups have equal rewards{_reward(metrics)}: the questions are too easy or too hard for this policy"


def _of_failures(metrics: Metrics) -> str:
    counts = {kind: metrics.get(f"outcome/{kind}", 0.0) for kind in Outcome if not kind.is_valid}
    worst = max(counts, key=lambda kind: counts[kind])
    if not counts[worst]:
        return "samples failed"
    return f"{counts[worst]:.0f} of {metrics.get('rollout/num_samples', 0.0):.0f} samples are {worst}: {_WHY_FAILED.get(worst, 'see their outcome_detail')}"


def _of_numerics(metrics: Metrics) -> str:
    return "look for the first NaN or infinity in this step's rollouts, gradient and new weights"


def _reward(metrics: Metrics) -> str:
    return f" (reward/mean = {metrics['reward/mean']:.3f})" if "reward/mean" in metrics else ""


_SUSPECTS: dict[AlarmKind, Callable[[Metrics], str]] = {
    "gap": _of_gap,
    "entropy": _of_entropy,
    "gradient": _of_gradient,
    "truncation": _of_truncation,
    "signal": _of_signal,
    "failures": _of_failures,
    "numerics": _of_numerics,
}
