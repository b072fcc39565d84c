"""``zerogap export``."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def export(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write a run's weights in Hugging Face format."""
    from zerogap import run

    step = run.export_run(
        Path(arguments.run_dir), Path(arguments.out), step=arguments.step, best=arguments.best
    )
    print(
        f"{arguments.out}: the model after step {step} in Hugging Face format; try `zerogap generate {arguments.out} --prompt ...`"
    )
    return 0
