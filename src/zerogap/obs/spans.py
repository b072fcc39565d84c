"""Where a step spends its time.

``with spans.span("generate"): ...`` times a block. Each finished span is handed to ``write`` (events.jsonl) and
added to the totals of its name, which ``take_totals`` returns and clears once a step. Spans may nest; a parent's
time includes its children's.
"""

from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from zerogap.obs.clock import Clock, monotonic_s, stamp

Event = dict[str, Any]


class Spans:
    """Timed blocks of one process. Not shared between threads."""

    def __init__(
        self, write: Callable[[Event], None] | None = None, *, clock: Clock = monotonic_s
    ) -> None:
        self._write = write
        self._clock = clock
        self._totals: dict[str, float] = defaultdict(float)
        self._open: list[str] = []

    @contextmanager
    def span(self, name: str, **attributes: object) -> Generator[None, None, None]:
        """Time the block under ``name``; a block that raises is recorded with ``failed``."""
        began, path = stamp(), "/".join([*self._open, name])
        self._open.append(name)
        start_s = self._clock()
        failed = True
        try:
            yield
            failed = False
        finally:
            duration_s = self._clock() - start_s
            self._open.pop()
            self._totals[name] += duration_s
            if self._write is not None:
                ending = {"failed": True} if failed else {}
                self._write(
                    {"span": path, "began": began, "duration_s": duration_s, **attributes, **ending}
                )

    def take_totals(self) -> dict[str, float]:
        """Seconds by name since the last call, spans that are still open excluded."""
        totals = dict(self._totals)
        self._totals.clear()
        return totals
