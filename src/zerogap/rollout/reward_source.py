"""A reward function by its path: what a process needs to import it, to see that it can be called, and to call it."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout.rewards import (
    RewardRequest,
    RewardResult,
    group_rewards_or_failures,
    reward_or_failure,
)

Takes = Literal["completion", "group"]

_ARGUMENTS: dict[Takes, tuple[str, str, str]] = {
    "completion": ("completion", "item", "sample"),
    "group": ("completions", "item", "samples"),
}


@dataclass(frozen=True, kw_only=True)
class RewardSource:
    """A function to import, and how to call it. Picklable."""

    function: str
    """``module:function``."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of every call; picklable."""
    takes: Takes = "completion"
    """Whether a call gets one completion, or all of a group."""

    def load(self) -> Callable[[Sequence[RewardRequest]], list[RewardResult | RewardFailed]]:
        """Import the function. The result rewards completions of one prompt.

        Raises:
            ConfigError: the function cannot be called with what it would get.
            Exception: importing raised it.
        """
        module, _, name = self.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        self._check_call(function)
        bound = functools.partial(function, **self.params)
        if self.takes == "group":
            return functools.partial(group_rewards_or_failures, bound)
        return lambda requests: [reward_or_failure(bound, request) for request in requests]

    def _check_call(self, function: object) -> None:
        if not callable(function):
            msg = f"it is {function!r}, which cannot be called; name a function"
            raise ConfigError(msg)
        try:
            signature = inspect.signature(function)
        except ValueError:
            return  # A function in C may have no signature to check.
        names = _ARGUMENTS[self.takes]
        call = ", ".join([*names, *(f"{name}={value!r}" for name, value in self.params.items())])
        try:
            signature.bind(*names, **self.params)
        except TypeError as error:
            msg = f"with takes = {self.takes!r} it is called as ({call}), but it is declared as {signature}: {error}; change its parameters, or the params of the recipe"
            raise ConfigError(msg) from None
        other: Takes = "completion" if self.takes == "group" else "group"
        if next(iter(signature.parameters)) == _ARGUMENTS[other][0]:
            msg = f"it is declared as {signature}, which takes a {other}, but takes = {self.takes!r}; set takes = {other!r}, or name the parameters {', '.join(names)}"
            raise ConfigError(msg)
