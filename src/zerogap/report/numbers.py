"""Numbers for people. Exactly 0 always looks different from nearly 0."""

import math


def format_number(value: float) -> str:
    """Three significant digits: ``0``, ``0.312``, ``12.5``, ``1,234``, ``3.2e-04``; ``inf`` and ``nan`` as such."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    rounded = float(f"{value:.2e}")  # first, so that 9.999 does not become 10.00
    return f"{rounded:.{2 - math.floor(math.log10(abs(rounded)))}f}"


def format_log_prob(value: float) -> str:
    """Nine significant digits, enough to tell any two float32; empty for NaN."""
    return "" if math.isnan(value) else f"{value + 0.0:.9g}"  # + 0.0: no "-0"


def format_bytes(num_bytes: float) -> str:
    """``812 MiB`` or ``2.13 GiB``."""
    mebibytes = num_bytes / 2**20
    if mebibytes < 1024:
        return f"{mebibytes:.0f} MiB"
    return f"{mebibytes / 1024:.2f} GiB"


def format_share(share: float) -> str:
    """Per cent; only exactly 0 reads as 0 %, and only exactly 1 as 100 %."""
    percent = 100 * share
    if 0 < percent < 0.1:
        return "<0.1 %"
    if 99.9 < percent < 100:
        return ">99.9 %"
    return f"{percent:.3g} %"


def plural(count: float, noun: str) -> str:
    """``1 step``, ``2 steps``, ``1,200 steps``."""
    return f"{count:,.0f} {noun}" if count == 1 else f"{count:,.0f} {noun}s"
