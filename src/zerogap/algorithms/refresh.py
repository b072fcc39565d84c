"""When a frozen model, a reference or a teacher, moves to the policy."""

from pydantic import Field

from zerogap.section import Section


class Refresh(Section):
    """Every few steps: model <- weight * policy + (1 - weight) * model, parameter by parameter, with the policy after the step."""

    every: int = Field(ge=1)
    """Steps from one refresh to the next."""
    weight: float = Field(1.0, gt=0, le=1)
    """Share of the policy: 1 copies it; with every = 1, a small one makes an exponential moving average (0.05 is usual)."""
