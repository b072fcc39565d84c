"""Monitoring of a run: alarms when it goes wrong, and a budget for its gap with remedies.

Comes in: the reduced metrics of each step. Goes out: alarms that went on or off, with hysteresis, and whether to save
and stop; a remedy to apply, or the end of the run. Nothing here measures anything or changes the run.
"""

from zerogap.watch.alarm import Alarm, WatchReport
from zerogap.watch.budget import BudgetController, Decision, Remedies
from zerogap.watch.suspects import largest_source
from zerogap.watch.watch import Watch

__all__ = [
    "Alarm",
    "BudgetController",
    "Decision",
    "Remedies",
    "Watch",
    "WatchReport",
    "largest_source",
]
