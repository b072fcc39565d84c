"""``zerogap train``."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zerogap import __version__
from zerogap.errors import ConfigError

if TYPE_CHECKING:
    from zerogap.config.load import ResolvedConfig

_KEY = re.compile(r"(\w+) = ")
ALARMED = 3
"""Exit code if an alarm stopped the run (``watch.stop``); the same command continues it."""


def train(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Run a recipe, or print what it resolves to."""
    from zerogap.config.load import load_config

    resolved = load_config(arguments.recipes, overrides)
    if arguments.explain and not arguments.dry_run:
        msg = "--explain says what the keys of a recipe mean, and needs --dry-run; to train, leave it out"
        raise ConfigError(msg)
    if arguments.dry_run:
        from zerogap.algorithms import check_user_functions

        config = resolved.config
        check_user_functions({**config.user_functions, **config.reward_functions})
        print("\n".join(_dry_run(resolved, with_meaning=arguments.explain)))
        return 0
    from zerogap import run

    result = run.train(resolved.config, quiet=arguments.quiet)
    if result.signal is not None:
        # As a shell reports a process that a signal ended: `zerogap train ... && next` must not go on.
        return 128 + result.signal
    return ALARMED if result.is_alarmed else 0


def _dry_run(resolved: ResolvedConfig, *, with_meaning: bool) -> Iterator[str]:
    """The resolved recipe, itself a recipe; then, as comments, the source of each given value."""
    from zerogap.config.load import config_to_toml

    yield f"# zerogap {__version__}: every key of this run. Keys that are not listed at the end have their default."
    text = config_to_toml(resolved.config)
    yield "\n".join(_explained(text)) if with_meaning else text
    yield "# set by"
    width = max(map(len, resolved.sources), default=0)
    for key, source in sorted(resolved.sources.items()):
        yield f"#   {key:<{width}}  {source}"


def _explained(toml: str) -> Iterator[str]:
    """Each key under a comment with its meaning, still a recipe."""
    from zerogap.cli.explain import described
    from zerogap.config.reference import key_of

    tree = tomllib.loads(toml)
    table, depth = "", 0
    for line in toml.splitlines():
        if depth == 0 and line.startswith("["):
            table = line.strip("[]")
        elif depth == 0 and (found := _KEY.match(line)):
            key = f"{table}.{found[1]}".lstrip(".")
            kind = _table(tree, table).get("kind")
            if (entry := key_of(key, kind)) is not None:
                yield from described(entry, prefix="# ")
        depth += line.count("[") - line.count("]") if not line.startswith("[") else 0
        yield line


def _table(tree: dict[str, object], name: str) -> dict[str, object]:
    for part in filter(None, name.split(".")):
        inner = tree.get(part)
        assert isinstance(inner, dict), f"{name} is a table of this recipe"
        tree = inner
    return tree
