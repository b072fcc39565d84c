"""The finding of a check, as text and JSON."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Whether one promise holds, and the evidence."""

    is_kept: bool
    figure: str
    """The measurement, with numbers."""
    cure: str = ""
    """What to do if the promise does not hold."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A finding and its promise."""

    promise: int
    """Number of the promise."""
    name: str
    finding: Finding
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether the promise holds here."""
        return self.finding.is_kept

    def to_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "promise": self.promise,
            "name": self.name,
            "is_kept": self.is_kept,
            "figure": self.finding.figure,
            "cure": self.finding.cure,
            "seconds": round(self.seconds, 2),
        }

    def line(self) -> str:
        """One line for people."""
        verdict = "pass" if self.is_kept else "FAIL"
        cure = f"; {self.finding.cure}" if self.finding.cure else ""
        return f"{self.promise}  {self.name:<18}  {verdict}  {self.finding.figure}{cure}  ({self.seconds:.1f} s)"  # fmt: skip
