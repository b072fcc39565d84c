"""What a reward function returned or raised, as a checked reward or a failure with its reason.

The function is the user's: it may return or raise anything, and no step of a run may die of it.
"""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Set
from numbers import Real
from pathlib import Path
from typing import Any

from zerogap.errors import RewardFailed
from zerogap.rollout.rewards import RewardResult

MAX_REWARD = 1e9
"""Largest magnitude of a reward and its parts. Gradients are fp32 and their norms sums of squares: with 1e20 the square
is infinite, and the step would train nothing without a word."""
_MAX_TEXT = 2000
"""Characters kept of a text that the function wrote."""
_OURS = Path(__file__).parents[1]
_ASYNCIO = f"{os.sep}asyncio{os.sep}"
"""Frames between the call and the user's line."""
_MAX_SHOWN = 200
"""Characters of a value in a message."""


def result_or_failure(call: Callable[[], object]) -> RewardResult | RewardFailed:
    """The checked reward that the call returns, or why there is none."""
    try:
        return checked_result(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, SystemExit too
        return described(error)


def group_results_or_failures(
    call: Callable[[], object], size: int
) -> list[RewardResult | RewardFailed]:
    """The checked rewards of ``size`` completions that one call returns, or why there are none."""
    try:
        rewards = _listed(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, SystemExit too
        return [described(error)] * size
    if len(rewards) != size:
        msg = f"the reward function returned {len(rewards)} rewards for a group of {size} completions; return one for each, in order"
        return [RewardFailed(msg)] * size
    return [result_or_failure(lambda reward=reward: reward) for reward in rewards]


def checked_result(returned: object) -> RewardResult:
    """The return value of a reward function, checked.

    Raises:
        RewardFailed: the value is one, the reward or a part is not a finite number of at most ``MAX_REWARD`` in
            magnitude, or the name of a part cannot be part of a metric's.
    """
    if isinstance(returned, RewardFailed):
        raise returned
    if not isinstance(returned, RewardResult):
        return RewardResult(_number(returned, "reward"))
    for name in returned.parts:
        if not (isinstance(name, str) and name and name.isprintable()):
            msg = f"the reward function returned a part named {shown(name)}; name parts with printable text"
            raise RewardFailed(msg)
    parts = {name: _number(part, f"part {name!r}") for name, part in returned.parts.items()}
    return RewardResult(_number(returned.value, "reward"), parts)


def described(error: BaseException) -> RewardFailed:
    """Why the call failed, with the line of the function that raised it. Always picklable and printable."""
    if isinstance(error, RewardFailed):
        return RewardFailed(_text_of(error))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not Path(frame.filename).is_relative_to(_OURS) and _ASYNCIO not in frame.filename
    ]
    place = f" ({Path(frames[0].filename).name}, line {frames[0].lineno})" if frames else ""
    text = _text_of(error)
    return RewardFailed(f"{type(error).__name__}{': ' if text else ''}{text}{place}")


def shown(value: object) -> str:
    """A value of the user's in a message: short, and encodable as UTF-8."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the user's __repr__ may raise anything
        text = f"a {type(value).__name__}"
    return _encodable(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ...")


def _listed(returned: object) -> list[object]:
    # A set has no order, and bytes are numbers that nobody meant as rewards.
    no_list = isinstance(returned, str | bytes | Mapping | Set)
    if no_list or not isinstance(returned, Iterable):
        msg = f"the reward function takes a group, but returned {shown(returned)}, which is no list; return a list with one reward for each completion"
        raise RewardFailed(msg)
    return list(returned)


def _number(value: Any, what: str) -> float:  # noqa: ANN401 - whatever the user returns
    # A scalar of numpy or torch.
    number: Any = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(number, Real) or number != number:
        how = "return a float, or a RewardResult(value, parts) to record parts" if isinstance(value, Mapping) else "return a finite float, or raise"  # fmt: skip
        msg = f"the reward function returned {what} = {shown(value)}, which is not a finite number; {how}"
        raise RewardFailed(msg)
    # Compared before it is converted: an int or a Fraction may be larger than any float.
    size: Any = abs(number)
    if size > MAX_REWARD:
        what_is = "not a finite number" if size == math.inf else f"beyond {MAX_REWARD:g}, too large to train on"  # fmt: skip
        msg = f"the reward function returned {what} = {shown(value)}, which is {what_is}; return smaller numbers, such as 0 to 1"
        raise RewardFailed(msg)
    return float(number)


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's __str__ may raise anything
        return "(its text cannot be read)"
    return _encodable(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ...")


def _encodable(text: str) -> str:
    """The text with lone surrogates as escapes: no file and no terminal can hold them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
