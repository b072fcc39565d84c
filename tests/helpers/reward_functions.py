"""Reward functions for worker processes, which import them by path."""

import os
import time
from pathlib import Path

import numpy as np

from zerogap.errors import RewardFailed


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


def shortest(completions, item, samples, *, bonus=1.0):
    least = min(map(len, completions))
    return [bonus * (len(completion) == least) for completion in completions]


def misbehave_in_group(completions, item, samples):
    """Does what the first completion says; each of the others gets the group's size."""
    match completions[0]:
        case "short":
            return [1.0]
        case "number":
            return 1.0
        case "text":
            return "x" * len(completions)
        case "one fails":
            return [RewardFailed("unreadable"), *[float(len(samples))] * (len(samples) - 1)]
        case "one is nan":
            return [float("nan"), *[float(len(samples))] * (len(samples) - 1)]
        case first:
            misbehave(first, item, samples[0])
    return np.full(len(completions), len(samples))


def same_prompt(completions, item, samples):
    """Whether each text and sample is of this item."""
    return [
        float(sample.text == text and item.question == "?")
        for text, sample in zip(completions, samples, strict=True)
    ]


def no_arguments():
    return []


MISBEHAVE = "not a function"
