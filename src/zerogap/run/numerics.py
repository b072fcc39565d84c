"""Decides the GEMM kernels for ``numerics`` on this machine, by a probe or by timing before the first step."""

from dataclasses import dataclass
from typing import Literal

from zerogap.errors import ConfigError
from zerogap.kernels import Gemm, kernel_report
from zerogap.run.policy import Policy

NumericsChoice = Literal["exact", "fast"]
"""The recipe's ``numerics``."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The GEMM kernels of each side."""

    engine: Gemm
    trainer: Gemm
    report: str
    """One line for people: kernels, and the result of the probe or the timing."""


def settle_numerics(
    policy: Policy, numerics: NumericsChoice, *, engine_rows: int, trainer_rows: int
) -> Numerics:
    """Probe batch invariance for "exact"; time both kinds of GEMM for "fast".

    Args:
        policy: the probe uses its shapes and weights, with the current number of threads.
        numerics: of the recipe.
        engine_rows: sequences in a decode step (``engine.max_running``).
        trainer_rows: rows in a forward and backward pass (``train.micro_batch_tokens``).

    Raises:
        ConfigError: "exact", but the kernels of this machine are not batch-invariant.
    """
    if numerics == "fast":
        found = policy.fastest_gemm(engine_rows=engine_rows, trainer_rows=trainer_rows)
        return Numerics(
            engine=found.engine.fastest,
            trainer=found.trainer.fastest,
            report=f"{_kernels(policy)}; numerics: fast, {found}; the gap may be above 0 and is measured",
        )
    probe = policy.probe()
    if not probe.is_exact:
        msg = f'numerics = "exact": GEMM on this machine is not batch-invariant, even in fixed tiles ({probe.examples}); set numerics = "fast", or another number of threads with ZEROGAP_THREADS'
        raise ConfigError(msg)
    probed = f"probed on this model's {probe.num_shapes} GEMM shapes"
    return Numerics(
        engine="exact", trainer="exact", report=f"{_kernels(policy)}; numerics: exact, {probed}"
    )


def _kernels(policy: Policy) -> str:
    return f"{kernel_report(policy.model.config.head_dim)}, {policy.model.precision}"
