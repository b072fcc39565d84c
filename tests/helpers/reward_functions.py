"""Reward functions for worker processes, which import them by path."""

import asyncio
import os
import sys
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
    if completion == "exit":
        sys.exit("no reward today")
    if completion == "surrogate":
        raise ValueError("price \ud83d today")
    if completion == "panic":
        raise Panic
    return 1.0


def always_raises(completion, item, sample):
    raise ValueError(f"cannot read {completion}")


def fails_once_in_a_group(completion, item, sample):
    """So that no group is without a reward, and more than a tenth of all samples are."""
    if sample.rollout_id.endswith("/0"):
        raise ValueError(f"price \ud83d of {completion}")
    return len(set(completion)) * 1e-300


class Panic(BaseException):
    """As libraries in Rust raise it, and with a text that cannot be read."""

    def __str__(self):
        raise RuntimeError


def hanging_score(completion, item):
    """A data set's score that evaluates what it is given."""
    if completion == "hang":
        time.sleep(3600)
    return float(completion)


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


def other_names(text, row, rollout):
    return 1.0


def keywords_only(*, completion, item, sample):
    return 1.0


class Grader:
    """A function as an object; the class itself is none."""

    def __call__(self, completion, _item, _sample):
        return 2.0 * len(completion)


grader = Grader()


async def patient(completion, item, sample):
    await asyncio.sleep(0)
    return float(len(completion))


def trl(completions, **kwargs):
    """As in TRL's documentation, with a look at everything it gets."""
    SEEN.append({"completions": completions, **kwargs})
    return [float(len(c) if isinstance(c, str) else len(c[0]["content"])) for c in completions]


def trl_with_column(prompts, completions, solution):
    return [float(s in c) for s, c in zip(solution, completions, strict=True)]


def trl_skips(completions, **kwargs):
    return [1.0, None, np.float32(0.5)][: len(completions)]


def verl(data_source, solution_str, ground_truth, extra_info=None):
    SEEN.append(
        {"data_source": data_source, "ground_truth": ground_truth, "extra_info": extra_info}
    )
    return ground_truth in solution_str


def verl_with_parts(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 0.5, "acc": True, "length": len(solution_str), "pred": solution_str}


def verl_without_score(data_source, solution_str, ground_truth):
    return {"acc": 1.0}


def verl_with_more(data_source, solution_str, ground_truth, reward_router_address):
    return 1.0


SEEN = []
"""What the functions above were called with, in this process."""


MISBEHAVE = "not a function"
