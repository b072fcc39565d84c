"""The metric that each alarm reads, and its limit.

Some limits come from the run itself: entropy and truncation from its first steps, the gradient norm from its
last ones. A metric that a step did not measure gives no reading and changes nothing.
"""

import math
from collections.abc import Iterator, Mapping
from statistics import fmean, median
from typing import Any

from zerogap.config import WatchConfig
from zerogap.obs import AlarmKind
from zerogap.watch.hysteresis import Reading

METRIC_OF: dict[AlarmKind, str] = {
    "gap": "gap/total/mean",
    "entropy": "policy/entropy",
    "gradient": "train/grad_norm",
    "truncation": "rollout/truncated_fraction",
    "signal": "group/without_signal",
    "failures": "rollout/failed_fraction",
}
"""Metric of each alarm; ``numerics`` reads all metrics."""

_NUM_FIRST = 5
"""First steps, which set the normal values of a run; limits that depend on them apply afterwards."""
_NUM_RECENT = 20
_RISE = 1.25
"""A run that starts beyond the truncation limit alarms when the share rises by a quarter."""
_EARNED = 0.1
"""Factor on the entropy limit while the reward is above that of all first steps: a policy that has learned is certain."""


class History:
    """The past values that limits are computed from. Mutated by ``readings`` only."""

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._entropies: list[float] = []
        self._rewards: list[float] = []
        self._truncations: list[float] = []
        self._grad_norms: list[float] = []

    def readings(self, metrics: Mapping[str, float]) -> Iterator[tuple[AlarmKind, Reading]]:
        """Readings of one step; its own values do not enter its limits."""
        config = self._config
        if (gap := metrics.get("gap/total/mean")) is not None:
            yield "gap", Reading(gap, config.gap)
        if num_groups := metrics.get("group/count"):
            share = metrics.get("group/without_signal", 0.0) / num_groups
            yield "signal", Reading(share, config.no_signal_fraction)
        if (share := metrics.get("rollout/failed_fraction")) is not None:
            yield "failures", Reading(share, config.failed_fraction)
        if (entropy := metrics.get("policy/entropy")) is not None:
            has_learned = self._has_learned(metrics)
            if (usual := _usual(self._entropies, entropy)) is not None:
                limit = usual * config.entropy_share * (_EARNED if has_learned else 1.0)
                yield "entropy", Reading(entropy, limit, is_collapse_below=True)
        if (share := metrics.get("rollout/truncated_fraction")) is not None:
            if (usual := _usual(self._truncations, share)) is not None:
                is_high = usual > config.truncated_fraction
                yield "truncation", Reading(share, usual * _RISE if is_high else config.truncated_fraction)  # fmt: skip
        if (norm := metrics.get("train/grad_norm")) is not None:
            if len(self._grad_norms) >= _NUM_FIRST:
                yield "gradient", Reading(norm, median(self._grad_norms) * config.grad_norm_ratio)
            # A step without any signal has gradient 0, which is no normal value.
            if norm > 0:
                self._grad_norms = [*self._grad_norms, norm][-_NUM_RECENT:]

    def _has_learned(self, metrics: Mapping[str, float]) -> bool:
        """Whether the reward is above that of every first step; False during those steps."""
        reward = metrics.get("reward/mean")
        return (
            reward is not None
            and _usual(self._rewards, reward) is not None
            and reward > max(self._rewards)
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {
            "entropies": list(self._entropies),
            "rewards": list(self._rewards),
            "truncations": list(self._truncations),
            "grad_norms": list(self._grad_norms),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``state_dict``."""
        self._entropies = list(state["entropies"])
        self._rewards = list(state["rewards"])
        self._truncations = list(state["truncations"])
        self._grad_norms = list(state["grad_norms"])


def first_not_finite(metrics: Mapping[str, float]) -> str | None:
    """Name of the first metric that is NaN or infinite; None if all are finite."""
    return next((name for name, value in metrics.items() if not math.isfinite(value)), None)


def _usual(first_ones: list[float], value: float) -> float | None:
    """Mean of the run's first values; while they are incomplete, append ``value`` and return None."""
    if len(first_ones) >= _NUM_FIRST:
        return fmean(first_ones)
    first_ones.append(value)
    return None
