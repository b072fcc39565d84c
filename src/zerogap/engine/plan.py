"""What one step does: rows to compute, sequences that draw, pages to copy before."""

from dataclasses import dataclass, field

from zerogap.engine.sequence import Sequence


@dataclass(frozen=True)
class ScheduledRows:
    """The next ``num_rows`` missing rows of a sequence; 0 if it only draws (from a sibling's prompt)."""

    sequence: Sequence
    num_rows: int
    draws: bool
    """Whether nothing is missing afterwards, so that the sequence draws a token."""


@dataclass
class StepPlan:
    """One step. Filled by the scheduler, read by everybody else."""

    budget: int
    """Rows that may still be added."""
    rows: list[ScheduledRows] = field(default_factory=list)
    page_copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): a page's contents in every layer."""

    def add(self, sequence: Sequence, num_rows: int) -> None:
        """Schedule the next rows of a sequence."""
        draws = sequence.draws and num_rows == sequence.num_missing
        self.rows.append(ScheduledRows(sequence, num_rows, draws))
        self.budget -= num_rows

    @property
    def drawing(self) -> list[Sequence]:
        """Sequences that draw a token in this step, in row order."""
        return [scheduled.sequence for scheduled in self.rows if scheduled.draws]
