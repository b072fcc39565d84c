"""What remedies have changed in a run, and what they can still change."""

from pydantic import BaseModel

from zerogap.algorithms import CorrectionsConfig, WeightCorrection
from zerogap.config import RunConfig
from zerogap.config.monitoring import Remedy


class Adaptations(BaseModel, frozen=True):
    """Settings that remedies may change. Replaced, never mutated; part of a checkpoint."""

    corrections: CorrectionsConfig
    lag: int
    is_exact: bool
    """Batch-invariant kernels, and one precision on both sides."""

    @classmethod
    def of_recipe(cls, config: RunConfig) -> "Adaptations":
        """The settings of the recipe."""
        return cls(
            corrections=config.applied_corrections,
            lag=config.rollout.lag,
            is_exact=config.numerics == "exact",
        )

    def with_corrections(self) -> "Adaptations":
        """With default importance weights added to the recipe's corrections."""
        corrections = self.corrections.model_copy(update={"weight": WeightCorrection()})
        return self.model_copy(update={"corrections": corrections})

    def with_less_lag(self) -> "Adaptations":
        """With one step less lag."""
        return self.model_copy(update={"lag": self.lag - 1})

    def with_exact_numerics(self) -> "Adaptations":
        """With exact numerics."""
        return self.model_copy(update={"is_exact": True})

    def why_not(self, remedy: Remedy, config: RunConfig) -> str | None:
        """Why a remedy cannot be applied; None if it can."""
        if remedy == "corrections":
            return self._why_not_corrections(config)
        if remedy == "staleness":
            return None if self.lag else "samples already come from the newest weights (lag 0)"
        if self.is_exact:
            return "numerics are already exact"
        if config.engine.backend != "zerogap":
            return f"engine.backend = {config.engine.backend!r} has its own kernels"
        return None

    def _why_not_corrections(self, config: RunConfig) -> str | None:
        if self.corrections.weight:
            return "corrections.weight is already on"
        if config.loss.compares_with_engine:
            return f"loss.kind = {config.loss.kind!r} compares with the engine itself, and weights would count the gap twice"
        if config.train.old_log_probs == "rollout":
            return 'train.old_log_probs = "rollout" compares the engine with itself, so every weight is 1'
        return None
