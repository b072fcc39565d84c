"""Step capsules: one step of a run in one file, and the same loss and gradient from it elsewhere, to the bit.

In: a run's folder and a step. Out: a file with the step's records, its weights or where they are, recipe, machine, and what
came out. Replaying computes loss and gradient of the step's first update again and compares.
"""

from zerogap.run.capsule.answer import Answer
from zerogap.run.capsule.file import Capsule, Embedded, Header, read_capsule, write_capsule
from zerogap.run.capsule.lines import agrees_with_run, describe_capsule, describe_replay
from zerogap.run.capsule.make import make_capsule
from zerogap.run.capsule.replay import Replay, replay_capsule

__all__ = [
    "Answer",
    "Capsule",
    "Embedded",
    "Header",
    "Replay",
    "agrees_with_run",
    "describe_capsule",
    "describe_replay",
    "make_capsule",
    "read_capsule",
    "replay_capsule",
    "write_capsule",
]
