"""Reward functions for worker processes, which import them by path."""

import os
import time
from pathlib import Path


def length(completion, item, sample, *, scale=1.0):
    return len(completion) * scale


def misbehave(completion, item, sample):
    """Does what the completion says."""
    if completion.startswith("hang"):
        if path := completion.removeprefix("hang").strip():
            Path(path).touch()
        time.sleep(3600)
    if completion == "crash":
        os._exit(3)
    if completion == "raise":
        raise ValueError("bad completion")
    if completion == "nan":
        return float("nan")
    if completion == "none":
        return None
    return 1.0


def slow(completion, item, sample):
    time.sleep(0.4)
    return 1.0
