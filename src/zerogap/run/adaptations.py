"""What a run has changed about itself to keep its mismatch budget, and what it could still change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerogap.config import CorrectionsConfig, RunConfig, WeightCorrection
from zerogap.config.monitoring import Remedy


@dataclass(frozen=True, kw_only=True)
class Adaptations:
    """Settings that remedies may move away from the recipe's. Replaced, never mutated; part of a checkpoint."""

    corrections: CorrectionsConfig
    lag: int
    is_exact: bool
    """Exact kernels, and one precision on both sides."""

    @classmethod
    def of_recipe(cls, config: RunConfig) -> "Adaptations":
        """Nothing adapted yet."""
        return cls(
            corrections=config.corrections,
            lag=config.rollout.lag,
            is_exact=config.numerics == "exact",
        )

    def with_corrections(self) -> "Adaptations":
        """Importance weights with their defaults, besides what the recipe has."""
        return Adaptations(
            corrections=self.corrections.model_copy(update={"weight": WeightCorrection()}),
            lag=self.lag,
            is_exact=self.is_exact,
        )

    def with_less_lag(self) -> "Adaptations":
        """Samples one step younger."""
        return Adaptations(corrections=self.corrections, lag=self.lag - 1, is_exact=self.is_exact)

    def with_exact_numerics(self) -> "Adaptations":
        """Exact from here on."""
        return Adaptations(corrections=self.corrections, lag=self.lag, is_exact=True)

    def why_not(self, remedy: Remedy, config: RunConfig) -> str | None:
        """Why a remedy cannot be taken; None if it can."""
        if remedy == "corrections":
            return self._why_not_corrections(config)
        if remedy == "staleness":
            return None if self.lag else "samples are of the newest weights already (lag 0)"
        if self.is_exact:
            return "numerics are exact already"
        if config.engine.backend != "zerogap":
            return f"engine.backend = {config.engine.backend!r} adds in an order of its own"
        return None

    def _why_not_corrections(self, config: RunConfig) -> str | None:
        if self.corrections.weight:
            return "corrections.weight is on already"
        if config.train.old_log_probs == "rollout":
            return 'train.old_log_probs = "rollout" makes every weight 1: they compare the engine with itself'
        return None

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {
            "corrections": self.corrections.model_dump(mode="json"),
            "lag": self.lag,
            "is_exact": self.is_exact,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Adaptations":
        """The inverse of ``state_dict``."""
        return cls(
            corrections=CorrectionsConfig.model_validate(state["corrections"]),
            lag=int(state["lag"]),
            is_exact=bool(state["is_exact"]),
        )
