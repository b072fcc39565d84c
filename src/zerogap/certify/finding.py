"""What a check found, and how it is told."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Of one promise."""

    is_kept: bool
    figure: str
    """What was measured, with numbers."""
    cure: str = ""
    """What to do if it is not kept."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A finding in the list of promises."""

    promise: int
    """Its number."""
    name: str
    finding: Finding
    seconds: float

    @property
    def is_kept(self) -> bool:
        """Whether the promise holds here."""
        return self.finding.is_kept

    def record(self) -> dict[str, Any]:
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
        """For people."""
        verdict = "pass" if self.is_kept else "FAIL"
        cure = f"; {self.finding.cure}" if self.finding.cure else ""
        return f"{self.promise}  {self.name:<18}  {verdict}  {self.finding.figure}{cure}  ({self.seconds:.1f} s)"  # fmt: skip
