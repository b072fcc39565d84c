"""``zerogap export``."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def export(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write a run's newest weights in Hugging Face format."""
    from zerogap import run

    run.export_run(Path(arguments.run_dir), Path(arguments.out))
    print(
        f"{arguments.out}: a model folder in Hugging Face format; try `zerogap generate {arguments.out} --prompt ...`"
    )
    return 0
