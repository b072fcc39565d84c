"""What one step does: rows to compute, sequences that draw, pages to copy first.

Siblings of one branch (``Sequence.branch``) hold the same keys, values and tokens, so their next rows have the same
bits. The first one in the plan computes the row; the others are its duplicates, share the row and cost no budget.
"""

from dataclasses import dataclass, field

from zerogap.engine.sequence import Sequence


@dataclass(frozen=True)
class ScheduledRows:
    """The next ``num_rows`` missing rows of a sequence; 0 if it only draws (from a prompt that a sibling computed)."""

    sequence: Sequence
    num_rows: int
    draws: bool
    """Whether nothing is missing afterwards, so that the sequence draws a token."""
    duplicate_of: int | None = None
    """Place in the plan of the sequence whose row this one shares; None if it computes its own."""


@dataclass
class StepPlan:
    """One step. The scheduler fills it; all others only read it."""

    budget: int
    """Rows that may still be computed."""
    rows: list[ScheduledRows] = field(default_factory=list)
    page_copies: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): a page's contents in every layer."""
    _place_of_branch: dict[int, int] = field(default_factory=dict)

    def add(self, sequence: Sequence, num_rows: int) -> None:
        """Schedule the next rows of a sequence."""
        draws = sequence.draws and num_rows == sequence.num_missing
        duplicate_of = self._duplicate_of(sequence) if num_rows == 1 else None
        self.rows.append(ScheduledRows(sequence, num_rows, draws, duplicate_of))
        if duplicate_of is None:
            self.budget -= num_rows

    def _duplicate_of(self, sequence: Sequence) -> int | None:
        place = len(self.rows)
        if not sequence.branch:
            return None
        first = self._place_of_branch.setdefault(sequence.branch, place)
        return None if first == place else first
