"""The checks in order, on engines and trainers of one policy, over one batch of samples."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from torch import Tensor

from zerogap.certify.finding import Finding
from zerogap.certify.fingerprints import check_fingerprints
from zerogap.certify.gradient import check_gradient
from zerogap.certify.identity import check_identity
from zerogap.certify.learning import (
    LEARNING_RATE,
    check_optimizer,
    check_resume,
    check_trained_export,
)
from zerogap.certify.probe_batch import probe_requests, samples_of
from zerogap.certify.round_trips import ModelFolder, Scores, check_round_trips
from zerogap.certify.rows import Reported, check_rows
from zerogap.certify.subjects import Subjects
from zerogap.certify.variants import compute_variants, layouts
from zerogap.certify.versions import check_versions
from zerogap.config import ModelSection
from zerogap.data import Tokenizer
from zerogap.foreign import transformers_log_probs
from zerogap.obs import Phase
from zerogap.run.export import export_policy
from zerogap.run.policy import load_policy
from zerogap.train import NativeTrainer, TrainMetrics
from zerogap.types import GenerateRequest, Sample
from zerogap.weights import Publisher, SharedWeights, WeightVersions, digest_weights, named_weights

Computed = TypeVar("Computed")


class Checks:
    """The checks in order, over one batch of samples that is generated once."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects
        policy, config = subjects.policy, subjects.config
        self._params = config.rollout.sampling.params()
        self._requests: list[GenerateRequest] = probe_requests(
            policy.tokenizer, self._params, max_positions=policy.model.config.max_positions
        )
        outputs = subjects.engine().generate(self._requests)
        self._samples: list[Sample] = samples_of(outputs, self._params.score_temperature)
        self._reported = Reported.of_outputs(outputs)

    def all(self) -> Sequence[tuple[int, str, Callable[[Phase], Finding]]]:
        """(number of the promise, its name, its check)."""
        return [
            (1, "step-0 identity", self._identity),
            (2, "batch invariance", self._rows),
            (3, "gradient layout", self._gradient),
            (4, "version truth", self._versions),
            (5, "fingerprints", self._fingerprints),
            (6, "resume", self._resume),
            (7, "optimizer", self._optimizer),
            (8, "round trips", self._round_trips),
            (9, "trained export", self._trained_export),
        ]

    def _identity(self, phase: Phase) -> Finding:
        model = self._subjects.policy.model

        def step(old: str) -> TrainMetrics:
            # Two updates: the ratio of the second uses log-probs from before the first.
            trainer = self._subjects.trainer(updates_per_step=2, old_log_probs=old)
            return trainer.step(trainer.plan(self._samples, exact_version=0))

        steps = {
            f"the {whose} log-probs": partial(step, old)
            for whose, old in (("trainer's", "trainer"), ("engine's", "rollout"))
        }
        return check_identity(
            _counted(steps, phase), lambda: digest_weights(named_weights(model)).hex
        )

    def _rows(self, phase: Phase) -> Finding:
        variants = compute_variants(self._subjects, self._requests, self._samples)
        return check_rows(self._reported, _counted(variants, phase), cure=self._cure_for_rows())

    def _cure_for_rows(self) -> str:
        if self._subjects.config.numerics == "fast":
            return 'numerics = "fast" does not promise this: set numerics = "exact", or accept the gap and set mismatch.budget'
        return "set another number of threads with ZEROGAP_THREADS and try again; if it still fails, please report it with the line on kernels"

    def _gradient(self, phase: Phase) -> Finding:
        return check_gradient(_counted(layouts(self._subjects, self._samples), phase))

    def _versions(self, phase: Phase) -> Finding:
        subjects, engine = self._subjects, self._subjects.engine()
        model, trainer = subjects.policy.model, subjects.trainer()
        publisher = Publisher(SharedWeights(model), engine, WeightVersions())
        return check_versions(
            engine,
            self._requests,
            named_weights(model)["layers.0.input_norm.weight"],
            publish=publisher.publish,
            score=trainer.score,
        )

    def _fingerprints(self, phase: Phase) -> Finding:
        engine = self._subjects.engine()
        weights = named_weights(self._subjects.policy.model)
        return check_fingerprints(
            weights, lambda: engine.digest().hex, lambda w: digest_weights(w).hex
        )

    def _resume(self, phase: Phase) -> Finding:
        return check_resume(self._learner, self._samples)

    def _optimizer(self, phase: Phase) -> Finding:
        return check_optimizer(self._learner(), self._subjects.config.train, self._samples)

    def _trained_export(self, phase: Phase) -> Finding:
        policy, dtype = self._subjects.policy, self._subjects.config.model.dtype

        def load(folder: Path) -> dict[str, Tensor]:
            section = ModelSection(path=str(folder), dtype=dtype)
            return named_weights(load_policy(section, seed=0).model)

        return check_trained_export(
            self._learner(), self._samples, export=lambda to: export_policy(policy, to), load=load
        )

    def _learner(self) -> NativeTrainer:
        """A trainer that learns; its checks restore the weights."""
        return self._subjects.trainer(
            learning_rate=LEARNING_RATE,
            schedule="constant",
            updates_per_step=1,
            old_log_probs="trainer",
        )

    def _round_trips(self, phase: Phase) -> Finding:
        subjects, samples = self._subjects, self._samples
        policy, config = subjects.policy, subjects.config

        scores = subjects.score(samples)

        def loaded(folder: Path, dtype: Literal["fp32", "bf16"]) -> Subjects:
            section = ModelSection(path=str(folder), dtype=dtype)
            return Subjects(policy=load_policy(section, seed=0), config=config)

        def load(folder: Path) -> tuple[Tokenizer, Callable[[Sequence[Sample]], Scores]]:
            again = loaded(folder, config.model.dtype)
            return again.policy.tokenizer, again.score

        def in_fp32(folder: Path) -> Scores:
            is_fp32 = config.model.dtype == "fp32"
            return scores if is_fp32 else loaded(folder, "fp32").score(samples)

        def in_transformers(folder: Path) -> Scores:
            return transformers_log_probs(folder, samples, vocab_limit=policy.vocab_limit)

        folder = ModelFolder(
            tokenizer=policy.tokenizer,
            tokenizer_folder=subjects.tokenizer_folder(),
            samples=samples,
            scores=scores,
            export=lambda to: export_policy(policy, to),
            load=load,
            fp32_scores=in_fp32,
            foreign_scores=in_transformers,
        )
        return check_round_trips(folder, subjects.engine(), self._requests, config)


def _counted(
    variants: Mapping[str, Callable[[], Computed]], phase: Phase
) -> dict[str, Callable[[], Computed]]:
    """The same functions; each also advances the phase."""

    def counted(compute: Callable[[], Computed]) -> Computed:
        computed = compute()
        phase.advance()
        return computed

    phase.update(0, len(variants))
    return {name: partial(counted, compute) for name, compute in variants.items()}
