"""The components of a run that compute, and the remedies that change them.

``Components`` holds the policy and everything that is built around it: trainer, engine and ledger. A mismatch budget
applies its remedies to it (``watch.Remedies``).
"""

from collections.abc import Callable, Mapping
from typing import Any

from zerogap.config import EngineConfig, RunConfig
from zerogap.config.monitoring import Remedy
from zerogap.data import reencode
from zerogap.ledger import ForwardScorer, Ledger
from zerogap.run.adaptations import Adaptations
from zerogap.run.numerics import Numerics, settle_numerics
from zerogap.run.policy import Policy
from zerogap.run.serving import Serving, build_serving
from zerogap.run.trainers import build_trainer, exact_version
from zerogap.run.versions import StepSettings
from zerogap.train import Trainer
from zerogap.types import Capability, needed_capabilities
from zerogap.weights import WeightHistory, WeightVersions


class Components:
    """Policy, trainer, engine and ledger of one run."""

    def __init__(self, config: RunConfig, policy: Policy, *, say: Callable[[str], None]) -> None:
        """Build everything; no weights are published yet.

        Args:
            config: the recipe.
            policy: with its weights loaded.
            say: prints which kernels were probed and chosen.
        """
        self.policy = policy
        self.versions = WeightVersions()
        self.adaptations = Adaptations.of_recipe(config)
        self.version = 0
        """Version of the trainer's weights. ``TrainingRun`` sets it after each step."""
        self._config, self._say = config, say
        self.numerics = self._settle_numerics()
        """GEMM kernels of each side."""
        self.trainer: Trainer = build_trainer(config, policy, gemm=self.numerics.trainer)
        self.serving = self._build_serving(history=None)
        self.ledger = self._build_ledger()

    @property
    def settings(self) -> StepSettings:
        """The settings of a step that trains now; with them, the step can be recomputed."""
        return StepSettings(
            gemm=self.numerics.trainer,
            is_exact=self.adaptations.is_exact,
            corrections=self.adaptations.corrections,
        )

    @property
    def exact_version(self) -> int | None:
        """Samples of this version carry the trainer's own log-probs; None if that is not promised."""
        return exact_version(self._config, self.version, self.settings)

    # ------------------------------------------------------------ remedies

    def why_not(self, remedy: Remedy) -> str | None:
        """Why a remedy cannot be taken now; None if it can."""
        return self.adaptations.why_not(remedy, self._config)

    def switch_on_corrections(self) -> None:
        """Weigh samples by their mismatch from the next step on."""
        self.adapt(self.adaptations.with_corrections())

    def reduce_lag(self) -> None:
        """Sample with weights one step younger from the next step on."""
        self.adapt(self.adaptations.with_less_lag())

    def exact_numerics(self) -> None:
        """Exact kernels and one precision on both sides from the next step on."""
        self.adapt(self.adaptations.with_exact_numerics())

    def state_dict(self) -> dict[str, Any]:
        """What remedies have changed, for a checkpoint; JSON."""
        return self.adaptations.model_dump(mode="json")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self.adapt(Adaptations.model_validate(state))

    def adapt(self, adaptations: Adaptations) -> None:
        """Use these settings from now on. A rebuilt engine gets the trainer's current weights."""
        before, self.adaptations = self.adaptations, adaptations
        self.trainer.use_corrections(adaptations.corrections)
        if adaptations.is_exact != before.is_exact:
            self.numerics = self._settle_numerics()
            self.trainer.use_gemm(self.numerics.trainer)
        if (adaptations.lag, adaptations.is_exact) != (before.lag, before.is_exact):
            self.serving.close()
            self.serving = self._build_serving(history=self.serving.history)
            self.ledger = self._build_ledger()
            self.serving.publish(self.version)

    # ------------------------------------------------------------ building

    def _engine_config(self) -> EngineConfig:
        engine = self._config.engine
        return engine.model_copy(update={"dtype": None}) if self.adaptations.is_exact else engine

    def _build_serving(self, *, history: WeightHistory | None) -> Serving:
        config, group_size = self._config, self._config.rollout.group_size
        params = config.rollout.sampling.params(n=group_size, seed=config.run.seed)
        return build_serving(
            self.policy,
            self._engine_config(),
            self.versions,
            lag=self.adaptations.lag,
            seed=config.run.seed,
            gemm=self.numerics.engine,
            needed={Capability.LOG_PROBS, *needed_capabilities(params)},
            history=history,
        )

    def _settle_numerics(self) -> Numerics:
        numerics = settle_numerics(
            self.policy,
            "exact" if self.adaptations.is_exact else "fast",
            engine_rows=self._config.engine.max_running,
            trainer_rows=self._config.train.micro_batch_tokens,
        )
        self._say(numerics.report)
        return numerics

    def _build_ledger(self) -> Ledger:
        config = self._config
        scorer = ForwardScorer(
            self.policy.model,
            live_version=lambda: self.version,
            micro_batch_tokens=config.train.micro_batch_tokens,
            history=self.serving.history,
            gemm=self.numerics.trainer,
        )
        tokenizer = self.policy.tokenizer
        return Ledger(
            scorer,
            config.ledger,
            reencode=lambda ids: reencode(ids, tokenizer),
            seed=config.run.seed,
            is_exact=self.adaptations.is_exact,
            trainer_scores=config.train.updates_per_step == 1,
        )
