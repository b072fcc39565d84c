"""``zerogap capsule`` and ``zerogap replay``."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def capsule(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Put a recorded step into one file."""
    from zerogap import run

    out = Path(arguments.out)
    made = run.make_capsule(
        Path(arguments.run_dir),
        out,
        step=arguments.step,
        with_weights=arguments.with_weights,
        quiet=arguments.quiet,
    )
    for line in run.describe_capsule(made, out):
        print(line)
    return 0


def replay(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Compute a capsule's step again; 1 if something else comes out."""
    from zerogap import run

    found = run.replay_capsule(
        Path(arguments.capsule), model=arguments.model, quiet=arguments.quiet
    )
    for line in run.describe_replay(found):
        print(line)
    return 0 if found.is_equal else 1
