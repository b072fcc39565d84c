"""From an alarm to words: what is probably behind it, and the command that shows more."""

from collections.abc import Callable, Mapping
from pathlib import Path

from zerogap.obs import GAP_SOURCES, AlarmKind

Metrics = Mapping[str, float]

_SOURCES = {
    "tokens": "text was encoded again and gave other ids than were sampled",
    "routing": "the trainer's router picks other experts than the engine's",
    "sampling": "tokens are drawn from a cut-down set that the loss does not know (top_p, top_k, min_p)",
    "numbers": "engine and trainer compute with other kernels or in another precision",
    "staleness": "samples are of older weights than the trainer's",
}


def largest_source(metrics: Metrics) -> tuple[str, float] | None:
    """(source, mean nats a token) of the largest open part of the gap; None where nothing was attributed."""
    names = {source: f"gap/{source}/open/mean" for source in GAP_SOURCES}
    measured = {source: metrics[name] for source, name in names.items() if name in metrics}
    return max(measured.items(), key=lambda item: item[1]) if measured else None


def suspect(kind: AlarmKind, metrics: Metrics) -> str:
    """What the other metrics of the step say about an alarm."""
    return _SUSPECTS[kind](metrics)


def command(kind: AlarmKind, run_dir: Path, step: int) -> str:
    """What to run for a closer look at ``step``: its worst tokens, all of its rollouts, or its gradient."""
    if kind in ("gradient", "numerics"):
        return f"zerogap capsule {run_dir} --step {step} step_{step}.zip"
    page = "" if kind == "gap" else f" --html step_{step}.html"
    return f"zerogap audit {run_dir} --step {step}{page}"


def _of_gap(metrics: Metrics) -> str:
    found = largest_source(metrics)
    if found is None or found[1] == 0:
        return "no source was attributed in this step"
    source, mean = found
    return f"{source} (gap/{source}/open/mean = {mean:.3g} nats): {_SOURCES[source]}"


def _of_entropy(metrics: Metrics) -> str:
    if (clipped := metrics.get("policy/clip_fraction", 0.0)) > 0.2:
        return f"updates that are too large: policy/clip_fraction = {clipped:.2f}; a smaller train.learning_rate"
    return f"the policy has become nearly certain{_reward(metrics)}: a smaller train.learning_rate, a [loss.kl] penalty, or harder questions"


def _of_gradient(metrics: Metrics) -> str:
    if (largest := metrics.get("gap/total/max", 0.0)) > 1:
        return f"tokens that the trainer finds far less likely than the engine did (gap/total/max = {largest:.3g} nats)"
    if (stale := metrics.get("staleness/max", 0.0)) > 0:
        return f"samples of weights {stale:.0f} steps old"
    return "few samples with rare tokens and large advantages; train.max_grad_norm bounds what they can do"


def _of_truncation(metrics: Metrics) -> str:
    length = metrics.get("rollout/completion_len/mean")
    grown = "" if length is None else f" (rollout/completion_len/mean = {length:.0f})"
    return f"completions grow{grown} until rollout.sampling.max_new_tokens cuts them; punish length (loss.overlong), or allow more"


def _of_signal(metrics: Metrics) -> str:
    reward = metrics.get("reward/mean")
    if reward is None:
        return "all answers of most prompts are worth the same"
    return f"all answers of most prompts are worth the same{_reward(metrics)}: questions that are too easy or too hard for the policy of now"


def _of_numerics(metrics: Metrics) -> str:
    return (
        "the first NaN or infinity of this step is in its rollouts, its gradient or its new weights"
    )


def _reward(metrics: Metrics) -> str:
    return f" (reward/mean = {metrics['reward/mean']:.3f})" if "reward/mean" in metrics else ""


_SUSPECTS: dict[AlarmKind, Callable[[Metrics], str]] = {
    "gap": _of_gap,
    "entropy": _of_entropy,
    "gradient": _of_gradient,
    "truncation": _of_truncation,
    "signal": _of_signal,
    "numerics": _of_numerics,
}
