"""A reward function by its path: what a process needs to import it, to see how it is called, and to call it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout.reward_checks import group_results_or_failures, result_or_failure
from zerogap.rollout.reward_conventions import (
    TRL,
    VERL,
    Arguments,
    Convention,
    Takes,
    convention_of,
    names_given,
    names_missing,
    result_of_verl,
    rewards_of_trl,
)
from zerogap.rollout.rewards import RewardRequest, RewardResult

HOW_TO_NAME = "name it as module:function, importable from the working directory"


@dataclass(frozen=True, kw_only=True)
class RewardSource:
    """A function to import, and how to call it. Picklable."""

    function: str
    """``module:function``."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of every call; picklable."""
    takes: Takes | None = None
    """Whether a call gets one completion, or all of a group; None: what the function's parameters say."""
    columns: tuple[str, ...] | None = None
    """Names of the fields that every row of the data has; None if they are not known."""
    answer_name: str | None = None
    """The data's own name of the reference answer."""

    def load(self) -> LoadedReward:
        """Import the function.

        Raises:
            ConfigError: there is none, it is declared in no known way, or it asks for what it would not get.
            Exception: importing raised it.
        """
        function = self._imported()
        signature = self._signature(function)
        convention = convention_of(signature)
        if self.takes not in (None, convention.takes):
            msg = f"it is declared as {signature}, which takes a {convention.takes}, but takes = {self.takes!r}; remove takes from the recipe"
            raise ConfigError(msg)
        self._check_call(signature, convention)
        arguments = Arguments(signature=signature, params=self.params, answer_name=self.answer_name)
        return LoadedReward(_finishing(function), convention, arguments)

    def _imported(self) -> Any:  # noqa: ANN401 - whatever the module holds
        module_name, _, name = self.function.partition(":")
        module = importlib.import_module(module_name)
        try:
            return getattr(module, name)
        except AttributeError:
            msg = f"{_place_of(module)} has no {name!r}; {HOW_TO_NAME}"
            raise ConfigError(msg) from None

    def _signature(self, function: object) -> inspect.Signature:
        if not callable(function) or inspect.isclass(function):
            what = "a class" if inspect.isclass(function) else f"{function!r}, which cannot be called"  # fmt: skip
            msg = f"it is {what}; name a function"
            raise ConfigError(msg)
        try:
            return inspect.signature(function)
        except ValueError:
            msg = "it is written in C, and nothing says what its parameters mean; name a Python function that calls it"
            raise ConfigError(msg) from None

    def _check_call(self, signature: inspect.Signature, convention: Convention) -> None:
        if convention.is_called_by_name:
            self._check_names(signature, convention)
            return
        names = convention.parameters.strip("()").split(", ")
        call = ", ".join([*names, *(f"{name}={value!r}" for name, value in self.params.items())])
        try:
            signature.bind(*names, **self.params)
        except TypeError as error:
            msg = f"it is called as ({call}), but it is declared as {signature}: {error}; change its parameters, or the params of the recipe"
            raise ConfigError(msg) from None

    def _check_names(self, signature: inspect.Signature, convention: Convention) -> None:
        given = names_given(convention, self.columns or ()) | self.params.keys()
        # Without rows, any name may be a column.
        is_open = convention is TRL and self.columns is None
        missing = [] if is_open else names_missing(signature, given)
        if missing:
            msg = f"it is declared as {signature}, which is {convention}, but nothing is given for {', '.join(missing)}; there are {', '.join(sorted(given))}; rename the parameter or give it a default, name the data's field in data.answer_field, or set it in params"
            raise ConfigError(msg)
        try:
            signature.bind_partial(**self.params)
        except TypeError as error:
            msg = f"it is declared as {signature}, and the params of the recipe do not fit: {error}; change one of them"
            raise ConfigError(msg) from None
        if any(p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values()):
            msg = f"it is declared as {signature}, but {convention} is called by name; remove the /"
            raise ConfigError(msg)


@dataclass(frozen=True)
class LoadedReward:
    """An imported function, called as it is declared."""

    function: Callable[..., Any]
    convention: Convention
    arguments: Arguments

    def __call__(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        """Rewards of completions of one prompt, at least one, in order."""
        if self.convention.takes == "group":
            return group_results_or_failures(lambda: self._of_group(requests), len(requests))
        return [result_or_failure(functools.partial(self._of_one, one)) for one in requests]

    def _of_one(self, request: RewardRequest) -> object:
        if self.convention is VERL:
            return result_of_verl(self.function(**self.arguments.of_verl(request)))
        params = self.arguments.params
        return self.function(request.completion, request.item, request.sample, **params)

    def _of_group(self, requests: Sequence[RewardRequest]) -> object:
        if self.convention is TRL:
            return rewards_of_trl(self.function(**self.arguments.of_trl(requests)))
        texts, samples = [r.completion for r in requests], [r.sample for r in requests]
        return self.function(texts, requests[0].item, samples, **self.arguments.params)


def _finishing(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or one that waits for it if it is asynchronous."""

    def finished(*arguments: object, **keywords: object) -> object:
        returned = function(*arguments, **keywords)
        return asyncio.run(returned) if inspect.iscoroutine(returned) else returned

    return finished


def _place_of(module: ModuleType) -> str:
    """The module with its file, and whether it hides one of the user's."""
    place = getattr(module, "__file__", None) or "a part of Python"
    is_pythons = module.__name__.partition(".")[0] in sys.stdlib_module_names
    hides = "; it is Python's own module, so rename yours" if is_pythons else ""
    return f"module {module.__name__!r} ({place}{hides})"
