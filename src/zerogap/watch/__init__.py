"""Watching a run: alarms that say when it goes wrong, and a budget for its gap that says what to do about it.

Comes in: the reduced metrics of each step. Goes out: alarms that went on or off, with hysteresis, and whether to save
and stop; a remedy to take, or the end of the run. It measures nothing itself and changes nothing in the run.
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
