"""Functions of the user's, named in a recipe as ``module:function``."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zerogap.errors import ConfigError


def user_function(path: str) -> Callable[..., Any]:
    """The function that ``module:function`` names.

    Raises:
        ConfigError: there is none.
    """
    module, _, name = path.partition(":")
    _look_here_too()
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        msg = f"{path!r}: cannot be imported ({error}); give module:function of a module in the working directory or on PYTHONPATH"
        raise ConfigError(msg) from error
    if not callable(found):
        msg = f"{path!r} is a {type(found).__name__}, not a function; give module:function"
        raise ConfigError(msg)
    return found


def module_file(path: str) -> Path | None:
    """The file of the module that ``module:function`` names, found without running it; None if there is none."""
    _look_here_too()
    try:
        spec = importlib.util.find_spec(path.partition(":")[0])
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


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


def _look_here_too() -> None:
    """Find modules in the working directory, after all others."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
