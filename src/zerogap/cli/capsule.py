"""``zerogap capsule`` and ``zerogap replay``."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def capsule(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write a recorded step into one file."""
    from zerogap.capsule import describe_capsule, make_capsule

    out = Path(arguments.out)
    made = make_capsule(
        Path(arguments.run_dir),
        out,
        step=arguments.step,
        with_weights=arguments.with_weights,
        quiet=arguments.quiet,
    )
    for line in describe_capsule(made, out):
        print(line)
    return 0


def replay(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Recompute a capsule's step; 1 if the result differs."""
    from zerogap.capsule import describe_replay, replay_capsule

    found = replay_capsule(Path(arguments.capsule), model=arguments.model, quiet=arguments.quiet)
    for line in describe_replay(found):
        print(line)
    return 0 if found.is_equal else 1
