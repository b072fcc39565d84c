"""The environment variables of zerogap. No other module reads any.

========================  ==========================================================================
``ZEROGAP_CACHE``         folder for compiled kernels and converted models; ``~/.cache/zerogap``
``ZEROGAP_KERNELS``       ``auto`` (native if they compile, else torch, with a notice), ``native``, ``torch``
``ZEROGAP_THREADS``       CPU threads of the tensor kernels, 1 or more; default: torch's choice
========================  ==========================================================================

Libraries read their own variables (``HF_HOME``, ``HF_HUB_OFFLINE``, ``OMP_NUM_THREADS``, ``CXX``).
``let_torch_threads_sleep`` sets one: ``GOMP_SPINCOUNT``.
"""

import difflib
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from zerogap.errors import ConfigError

KernelChoice = Literal["auto", "native", "torch"]
_NAMES = ("ZEROGAP_CACHE", "ZEROGAP_KERNELS", "ZEROGAP_THREADS")


@dataclass(frozen=True)
class Environment:
    """The environment variables, checked."""

    cache: Path
    """Absolute; may not exist yet."""
    kernels: KernelChoice
    threads: int | None
    """None: torch's default."""


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """The checked variables of this process, or of ``variables``.

    Raises:
        ConfigError: a bad value, or an unknown ``ZEROGAP_`` variable.
    """
    given = os.environ if variables is None else variables
    problems = [_unknown(name) for name in sorted(given) if _is_unknown(name)]
    kernels = given.get("ZEROGAP_KERNELS", "auto")
    if kernels not in get_args(KernelChoice):
        problems.append(
            f"ZEROGAP_KERNELS = {kernels!r}: unknown kernels; set auto, native or torch"
        )
    threads = given.get("ZEROGAP_THREADS")
    if threads is not None and not (threads.isascii() and threads.isdigit() and int(threads) > 0):
        problems.append(
            f"ZEROGAP_THREADS = {threads!r}: not a number of threads; set 1 or more, or unset it"
        )
    cache = given.get("ZEROGAP_CACHE", "~/.cache/zerogap")
    if not cache.strip():
        problems.append(f"ZEROGAP_CACHE = {cache!r}: not a folder; name one, or unset it")
    folder = Path(cache)
    try:
        folder = folder.expanduser().absolute()
    except RuntimeError:
        problems.append(
            f"ZEROGAP_CACHE = {cache!r}: this user has no home folder (HOME is not set, and the system knows none); set ZEROGAP_CACHE to a folder that you can write"
        )
    if problems:
        raise ConfigError("\n".join(problems))
    return Environment(
        cache=folder,
        kernels=cast(KernelChoice, kernels),
        threads=None if threads is None else int(threads),
    )


def let_torch_threads_sleep(variables: MutableMapping[str, str] = os.environ) -> None:
    """Make torch's own threads sleep soon after their work; otherwise they block cores for 10 ms and more.

    GNU's OpenMP reads the variable when it is loaded, so call this before torch is imported. A user's setting is kept.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & variables.keys():
        variables["GOMP_SPINCOUNT"] = "1000"


def _is_unknown(name: str) -> bool:
    return name.startswith("ZEROGAP_") and name not in _NAMES


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known variables: {', '.join(_NAMES)}"
    return f"{name}: unknown variable, so it has no effect; {hint}"
