"""``zerogap train``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zerogap import __version__

if TYPE_CHECKING:
    from zerogap.config.load import ResolvedConfig

ALARMED = 3
"""Exit code if an alarm stopped the run (``watch.stop``); the same command continues it."""


def train(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Run a recipe, or print what it resolves to."""
    from zerogap.config.load import load_config

    resolved = load_config(arguments.recipes, overrides)
    if arguments.dry_run:
        from zerogap.algorithms import check_user_functions

        config = resolved.config
        check_user_functions({**config.user_functions, **config.reward_functions})
        print("\n".join(_dry_run(resolved)))
        return 0
    from zerogap import run

    result = run.train(resolved.config, quiet=arguments.quiet)
    if result.signal is not None:
        # As a shell reports a process that a signal ended: `zerogap train ... && next` must not go on.
        return 128 + result.signal
    return ALARMED if result.is_alarmed else 0


def _dry_run(resolved: ResolvedConfig) -> Iterator[str]:
    """The resolved recipe, itself a recipe; then, as comments, the source of each given value."""
    from zerogap.config.load import config_to_toml

    yield f"# zerogap {__version__}: every key of this run. Keys that are not listed at the end have their default."
    yield config_to_toml(resolved.config)
    yield "# set by"
    width = max(map(len, resolved.sources), default=0)
    for key, source in sorted(resolved.sources.items()):
        yield f"#   {key:<{width}}  {source}"
