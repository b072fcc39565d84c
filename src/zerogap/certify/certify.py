"""``certify``: load the user's policy, do every check on it, say what holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from zerogap.certify.checks import Checks
from zerogap.certify.finding import Finding, Verdict
from zerogap.certify.subjects import Subjects
from zerogap.config import RunConfig
from zerogap.errors import ConfigError, ZerogapError
from zerogap.kernels import RowProbe, kernel_report
from zerogap.obs import Phase, Progress, monotonic_s
from zerogap.run.machine import return_free_memory
from zerogap.run.policy import Policy, load_policy
from zerogap.run.threads import apply_threads


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
    report, subjects = _choose_products(policy, config)
    on_report(report)
    verdicts = []
    for promise, name, check in Checks(subjects).all():
        began_s = monotonic_s()
        with progress.phase(f"promise {promise}, {name}", unit="ways") as phase:
            finding = _found(check, phase)
        return_free_memory()
        verdicts.append(
            Verdict(promise=promise, name=name, finding=finding, seconds=monotonic_s() - began_s)
        )
        on_verdict(verdicts[-1])
    return Certificate(report, tuple(verdicts))


def _found(check: Callable[[Phase], Finding], phase: Phase) -> Finding:
    """What a check found; one that cannot be completed has found that its promise does not hold here."""
    try:
        return check(phase)
    except ZerogapError as error:
        figure = f"{type(error).__name__}: {error}"
        return Finding(is_kept=False, figure=figure, cure="the check could not be completed")


def _choose_products(policy: Policy, config: RunConfig) -> tuple[str, Subjects]:
    """As a run does: exact ones that were probed, or each side's faster ones."""
    head_dim = policy.model.config.head_dim
    if config.numerics == "exact":
        report = describe_probe(policy.probe(), head_dim)
        return report, Subjects(policy=policy, config=config)
    timed = policy.fastest_products(
        engine_rows=config.engine.max_running, trainer_rows=config.train.micro_batch_tokens
    )
    return f"{kernel_report(head_dim)}; {timed}", Subjects(
        policy=policy,
        config=config,
        engine_products=timed.engine.fastest,
        trainer_products=timed.trainer.fastest,
    )


def describe_probe(probe: RowProbe, head_dim: int) -> str:
    """One line: kernels, threads, and whether a row's products keep their bits on this model's shapes."""
    if probe.is_exact:
        found = f"row-invariant on all {probe.num_shapes} shapes of this model"
    else:
        found = f"NOT row-invariant ({len(probe.failures)} failures on {probe.num_shapes} shapes: {probe.examples})"
    return f"{kernel_report(head_dim)}; probed on {probe.num_threads} threads: {found}"


def _refuse_unlike_sides(config: RunConfig) -> None:
    engine = config.engine
    if engine.backend != "zerogap":
        msg = f'engine.backend = {engine.backend!r}: certify proves what zerogap\'s own engine promises, and another program promises none of it; set engine.backend = "zerogap" here (a run with the other one measures its gap in the ledger)'
        raise ConfigError(msg)
    if engine.dtype not in (None, config.model.dtype):
        msg = f"engine.dtype = {engine.dtype!r}: two precisions cannot agree to the bit, so there is nothing to prove; leave it out here (a run with it measures its gap in the ledger)"
        raise ConfigError(msg)
