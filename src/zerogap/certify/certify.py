"""``certify``: load the policy, make every check, report the verdicts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from zerogap.certify.checks import Checks
from zerogap.certify.finding import Finding, Verdict
from zerogap.certify.subjects import Subjects
from zerogap.config import RunConfig
from zerogap.errors import ConfigError, ZerogapError
from zerogap.kernels import InvarianceProbe, kernel_report
from zerogap.obs import Phase, Progress, monotonic_s
from zerogap.run.machine import apply_threads, return_free_memory
from zerogap.run.policy import Policy, load_policy


@dataclass(frozen=True)
class Certificate:
    """The report on kernels, and every verdict."""

    report: str
    """One line: kernels, threads and the start-up probe."""
    verdicts: tuple[Verdict, ...]

    @property
    def is_kept(self) -> bool:
        """Whether all checks passed."""
        return all(verdict.is_kept for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "is_kept": self.is_kept,
            "report": self.report,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
        }


def certify(
    config: RunConfig,
    *,
    quiet: bool = False,
    on_report: Callable[[str], None] = lambda line: None,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> Certificate:
    """Make every check with the recipe's model and settings; no run folder is written, and weights that a check changes are restored.

    Args:
        config: the resolved recipe.
        quiet: show no progress.
        on_report: called with the line on kernels, before the first check.
        on_verdict: called with each verdict, right after its check.

    Raises:
        ZerogapError: the model cannot be loaded, or the recipe's engine cannot be exact.
    """
    _refuse_unlike_sides(config)
    apply_threads()
    progress = Progress(Console(stderr=True), is_quiet=quiet)
    with progress.phase("loading the model"):
        policy = load_policy(config.model, seed=config.run.seed)
    report, subjects = _choose_gemm(policy, config)
    on_report(report)
    verdicts = []
    for promise, name, check in Checks(subjects).all():
        began_s = monotonic_s()
        with progress.phase(f"promise {promise}, {name}", unit="variants") as phase:
            finding = _found(check, phase)
        return_free_memory()
        verdicts.append(
            Verdict(promise=promise, name=name, finding=finding, seconds=monotonic_s() - began_s)
        )
        on_verdict(verdicts[-1])
    return Certificate(report, tuple(verdicts))


def _found(check: Callable[[Phase], Finding], phase: Phase) -> Finding:
    """The finding of a check; a check that raises has failed."""
    try:
        return check(phase)
    except ZerogapError as error:
        figure = f"{type(error).__name__}: {error}"
        return Finding(is_kept=False, figure=figure, cure="the check could not be completed")


def _choose_gemm(policy: Policy, config: RunConfig) -> tuple[str, Subjects]:
    """Choose GEMM kernels as a run does: exact ones after a probe, or the faster ones for each side."""
    head_dim = policy.model.config.head_dim
    if config.numerics == "exact":
        report = describe_probe(policy.probe(), head_dim)
        return report, Subjects(policy=policy, config=config)
    timed = policy.fastest_gemm(
        engine_rows=config.engine.max_running, trainer_rows=config.train.micro_batch_tokens
    )
    return f"{kernel_report(head_dim)}; {timed}", Subjects(
        policy=policy,
        config=config,
        engine_gemm=timed.engine.fastest,
        trainer_gemm=timed.trainer.fastest,
    )


def describe_probe(probe: InvarianceProbe, head_dim: int) -> str:
    """One line: kernels, threads, and whether GEMM is batch-invariant on this model's shapes."""
    if probe.is_exact:
        found = f"batch-invariant on all {probe.num_shapes} shapes of this model"
    else:
        found = f"NOT batch-invariant ({len(probe.failures)} failures on {probe.num_shapes} shapes: {probe.examples})"
    return f"{kernel_report(head_dim)}; probed on {probe.num_threads} threads: {found}"


def _refuse_unlike_sides(config: RunConfig) -> None:
    engine = config.engine
    if engine.backend != "zerogap":
        msg = f'engine.backend = {engine.backend!r}: certify checks the promises of zerogap\'s own engine only; set engine.backend = "zerogap" here (a run with another engine measures its gap in the ledger)'
        raise ConfigError(msg)
    if engine.dtype not in (None, config.model.dtype):
        msg = f"engine.dtype = {engine.dtype!r}: two precisions cannot agree to the bit, so the checks cannot pass; leave it out here (a run with it measures its gap in the ledger)"
        raise ConfigError(msg)
