"""Step capsules: one step of a run in one file, which replays to the same loss and gradient elsewhere, to the bit.

In: a run's folder and a step. Out: a file with the step's samples, its weights or their digests, recipe, machine, loss
and gradient. A replay computes loss and gradient of the step's first update again and compares.
"""

from zerogap.capsule.answer import Answer
from zerogap.capsule.file import Capsule, Embedded, Header, read_capsule, write_capsule
from zerogap.capsule.lines import agrees_with_run, describe_capsule, describe_replay
from zerogap.capsule.make import make_capsule
from zerogap.capsule.replay import Replay, replay_capsule

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
