"""Functions of the user's, named in a recipe as ``module:function``."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from zerogap.errors import ConfigError


def user_function(path: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    Raises:
        ConfigError: there is none.
    """
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        msg = f"{path!r}: cannot be imported ({error}); give module:function of a module in the working directory or on PYTHONPATH"
        raise ConfigError(msg) from error
    if not callable(found):
        msg = f"{path!r} is a {type(found).__name__}, not a function; give module:function"
        raise ConfigError(msg)
    return found


def check_user_functions(paths: Mapping[str, str]) -> None:
    """Import functions that will be called later.

    Args:
        paths: recipe key -> ``module:function``.

    Raises:
        ConfigError: names the keys of those that cannot be imported.
    """
    problems = []
    for key, path in paths.items():
        try:
            user_function(path)
        except ConfigError as error:
            problems.append(f"{key} = {error}")
    if problems:
        raise ConfigError("\n".join(problems))


def call_user_function(path: str, *arguments: object, **params: object) -> Any:  # noqa: ANN401 - whatever the user returns
    """Call it. What it raises passes through: the traceback shows the user's line."""
    return user_function(path)(*arguments, **params)
