"""[mismatch]: a limit for the gap, and what the run may do to keep it."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.config.section import Section

Remedy = Literal["corrections", "staleness", "numerics"]


class MismatchConfig(Section):
    """While the audited gap stays above the budget, the run takes one allowed remedy after the other, and then stops."""

    budget: float | None = Field(None, gt=0)
    """Most nats a token of gap/total/mean (0.01 is usual for two separate stacks in bf16); none: measured only."""
    patience: int = Field(3, ge=1)
    """Steps in a row above the budget before the next remedy is taken."""
    remedies: Annotated[tuple[Remedy, ...], Field(strict=False)] = (
        "corrections",
        "staleness",
        "numerics",
    )
    """What may be done, always in this order: switch on importance weights; sample with weights one step younger;
    take exact numerics. When none is left, the run stops with an error that names the source."""

    def problems(self) -> Iterator[str]:
        """One remedy twice."""
        if len(set(self.remedies)) != len(self.remedies):
            yield f"remedies = {list(self.remedies)}: one of them is named twice; name each once"
