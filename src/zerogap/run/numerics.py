"""What ``numerics`` comes to on this machine: probed or timed before the first step, never assumed."""

from dataclasses import dataclass
from typing import Literal

from zerogap.errors import ConfigError
from zerogap.kernels import Products, kernel_report
from zerogap.run.policy import Policy

NumericsChoice = Literal["exact", "fast"]
"""As a recipe has it."""


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """Whose matrix products each side uses."""

    engine: Products
    trainer: Products
    report: str
    """One line for people: which kernels run, and what was probed or timed and chosen."""


def settle_numerics(
    policy: Policy, numerics: NumericsChoice, *, engine_rows: int, trainer_rows: int
) -> Numerics:
    """Probe row invariance for "exact"; time both kinds of products for "fast".

    Args:
        policy: its model's own shapes and weights are probed, with the present number of threads.
        numerics: of the recipe.
        engine_rows: sequences of a decode step (``engine.max_running``).
        trainer_rows: of a forward and backward pass (``train.micro_batch_tokens``).

    Raises:
        ConfigError: exact, and this machine cannot be.
    """
    if numerics == "fast":
        found = policy.fastest_products(engine_rows=engine_rows, trainer_rows=trainer_rows)
        return Numerics(
            engine=found.engine.fastest,
            trainer=found.trainer.fastest,
            report=f"{_kernels(policy)}; numerics: fast, {found}; the gap is measured and may be open",
        )
    probe = policy.probe()
    if not probe.is_exact:
        msg = f'numerics = "exact": matrix products on this machine give a row other bits beside other rows ({probe.examples}), even in fixed tiles; set numerics = "fast", or another number of threads with ZEROGAP_THREADS'
        raise ConfigError(msg)
    probed = f"probed on this model's {probe.num_shapes} shapes of products"
    return Numerics(
        engine="exact", trainer="exact", report=f"{_kernels(policy)}; numerics: exact, {probed}"
    )


def _kernels(policy: Policy) -> str:
    return f"{kernel_report(policy.model.config.head_dim)}, {policy.model.precision}"
