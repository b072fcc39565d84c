"""``certify``: load the user's policy, do every check on it, say what holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from zerogap.config import ModelSection, RunConfig
from zerogap.data import Tokenizer
from zerogap.errors import ConfigError
from zerogap.foreign import transformers_log_probs
from zerogap.kernels import RowProbe, kernel_report
from zerogap.obs import Phase, Progress, monotonic_s
from zerogap.run.certify.finding import Finding, Verdict
from zerogap.run.certify.fingerprints import check_fingerprints
from zerogap.run.certify.gradient import check_gradient
from zerogap.run.certify.identity import check_identity
from zerogap.run.certify.probe_batch import probe_requests, samples_of
from zerogap.run.certify.round_trips import ModelFolder, check_round_trips
from zerogap.run.certify.rows import Reported, check_rows
from zerogap.run.certify.subjects import Subjects
from zerogap.run.certify.versions import check_versions
from zerogap.run.certify.ways import layouts, ways_to_compute
from zerogap.run.export import export_policy
from zerogap.run.free_memory import return_free_memory
from zerogap.run.policy import load_policy
from zerogap.run.train import apply_threads
from zerogap.types import GenerateRequest, Sample
from zerogap.weights import Publisher, SharedWeights, WeightVersions, digest_weights, named_weights

Computed = TypeVar("Computed")

_FOREIGN_LIMIT = {"fp32": 1e-3, "bf16": 0.5}
"""Nats a token between us and transformers in fp32: rounding of two orders of addition, and of a model in bf16."""


@dataclass(frozen=True)
class Certificate:
    """What was probed, and every verdict."""

    report: str
    """Kernels, threads and the start-up probe."""
    verdicts: tuple[Verdict, ...]

    @property
    def is_kept(self) -> bool:
        """Whether all promises hold here."""
        return all(verdict.is_kept for verdict in self.verdicts)

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {
            "is_kept": self.is_kept,
            "report": self.report,
            "verdicts": [verdict.record() for verdict in self.verdicts],
        }


def certify(
    config: RunConfig,
    *,
    quiet: bool = False,
    on_report: Callable[[str], None] = lambda line: None,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> Certificate:
    """Do every check with the recipe's model and settings; no file of a run is written, and nothing is trained.

    Args:
        config: the resolved recipe.
        quiet: no progress.
        on_report: gets the line on kernels and the probe, before the first check.
        on_verdict: gets each verdict when it is there.

    Raises:
        ZerogapError: the model cannot be loaded, or the recipe's engine is not one that can be exact.
    """
    _refuse_unlike_sides(config)
    apply_threads()
    progress = Progress(Console(stderr=True), is_quiet=quiet)
    with progress.phase("loading the model"):
        policy = load_policy(config.model, seed=config.run.seed)
    subjects = Subjects(policy=policy, config=config)
    report = describe_probe(policy.probe(), policy.model.config.head_dim)
    on_report(report)
    verdicts = []
    for promise, name, check in _Checks(subjects).all():
        began_s = monotonic_s()
        with progress.phase(f"promise {promise}, {name}", unit="ways") as phase:
            finding = check(phase)
        return_free_memory()
        verdicts.append(
            Verdict(promise=promise, name=name, finding=finding, seconds=monotonic_s() - began_s)
        )
        on_verdict(verdicts[-1])
    return Certificate(report, tuple(verdicts))


def describe_probe(probe: RowProbe, head_dim: int) -> str:
    """One line: kernels, threads, and whether a row's products keep their bits on this model's shapes."""
    if probe.is_exact:
        found = "row-invariant on this model's shapes"
    else:
        shapes = ", ".join(f"{i}x{o} at {rows} rows" for i, o, rows in probe.failures[:3])
        found = f"NOT row-invariant ({len(probe.failures)} failures: {shapes})"
    return f"{kernel_report(head_dim)}; probed on {probe.num_threads} threads: {found}"


def _refuse_unlike_sides(config: RunConfig) -> None:
    engine = config.engine
    if engine.backend != "zerogap":
        msg = f'engine.backend = {engine.backend!r}: certify proves what zerogap\'s own engine promises, and another program promises none of it; set engine.backend = "zerogap" here (a run with the other one measures its gap in the ledger)'
        raise ConfigError(msg)
    if engine.dtype not in (None, config.model.dtype):
        msg = f"engine.dtype = {engine.dtype!r}: two precisions cannot agree to the bit, so there is nothing to prove; leave it out here (a run with it measures its gap in the ledger)"
        raise ConfigError(msg)


def _counted(
    ways: Mapping[str, Callable[[], Computed]], phase: Phase
) -> dict[str, Callable[[], Computed]]:
    """The same functions; each advances the phase when it has been called."""

    def counted(compute: Callable[[], Computed]) -> Callable[[], Computed]:
        def call() -> Computed:
            computed = compute()
            phase.advance()
            return computed

        return call

    phase.update(0, len(ways))
    return {name: counted(compute) for name, compute in ways.items()}


class _Checks:
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
            (2, "row invariance", self._rows),
            (3, "gradient layout", self._gradient),
            (4, "version truth", self._versions),
            (5, "fingerprints", self._fingerprints),
            (8, "round trips", self._round_trips),
        ]

    def _identity(self, phase: Phase) -> Finding:
        model, samples = self._subjects.policy.model, self._samples
        # Two updates: the second one's ratio is against what was known before the first.
        steps = {
            f"the {whose} log-probs": lambda old=old: self._subjects.trainer(
                updates_per_step=2, old_log_probs=old
            ).step(samples, exact_version=0)
            for whose, old in (("trainer's", "trainer"), ("engine's", "rollout"))
        }
        return check_identity(
            _counted(steps, phase), lambda: digest_weights(named_weights(model)).hex
        )

    def _rows(self, phase: Phase) -> Finding:
        ways = ways_to_compute(self._subjects, self._requests, self._samples)
        return check_rows(self._reported, _counted(ways, phase), cure=self._cure_for_rows())

    def _cure_for_rows(self) -> str:
        if self._subjects.config.numerics == "fast":
            return 'numerics = "fast" does not promise it: set numerics = "exact", or accept the gap and set mismatch.budget'
        return "set another number of threads with ZEROGAP_THREADS and try again; if it stays, please report it with the line on kernels"

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
        return check_fingerprints(weights, engine.read_weights, lambda w: digest_weights(w).hex)

    def _round_trips(self, phase: Phase) -> Finding:
        subjects, samples = self._subjects, self._samples
        policy, config = subjects.policy, subjects.config

        def load(folder: Path) -> tuple[Tokenizer, Callable[[Sequence[Sample]], Sequence[np.ndarray]]]:  # fmt: skip
            section = ModelSection(path=str(folder), dtype=config.model.dtype)
            loaded = Subjects(policy=load_policy(section, seed=0), config=config)
            return loaded.policy.tokenizer, loaded.score

        def in_transformers(folder: Path) -> Sequence[np.ndarray]:
            return transformers_log_probs(folder, samples, vocab_limit=policy.vocab_limit)

        folder = ModelFolder(
            tokenizer=policy.tokenizer,
            tokenizer_folder=subjects.tokenizer_folder(),
            samples=samples,
            scores=subjects.score(samples),
            export=lambda to: export_policy(policy, to),
            load=load,
            foreign_scores=in_transformers,
            foreign_limit=_FOREIGN_LIMIT[config.model.dtype],
        )
        return check_round_trips(folder, subjects.engine(), self._requests, config)
