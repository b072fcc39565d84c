"""A monotonic clock for durations, and a wall clock for timestamps."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]
"""Seconds since an arbitrary origin; never decreases."""

monotonic_s: Clock = time.perf_counter


def stamp() -> str:
    """Now, as ISO 8601 in UTC with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def unix_time_s() -> float:
    """Now, in seconds since 1970; only for file formats that need it."""
    return datetime.now(UTC).timestamp()


def format_duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s`` or ``2 h 05 min``: two significant units for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
