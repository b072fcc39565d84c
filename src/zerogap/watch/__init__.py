"""The collapse watch: says when a run goes wrong, since when, what is behind it and where to look.

Comes in: the reduced metrics of each step. Goes out: alarms that went on or off, with hysteresis, and whether to save
and stop. It measures nothing itself and changes nothing in the run.
"""

from zerogap.watch.alarm import Alarm, WatchReport
from zerogap.watch.suspects import largest_source
from zerogap.watch.watch import Watch

__all__ = ["Alarm", "Watch", "WatchReport", "largest_source"]
