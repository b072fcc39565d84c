"""Arguments of the commands for a recorded run: audit, capsule, replay."""

import argparse
import os
from pathlib import Path

AUDIT_EXAMPLES = """Scores every token that a recorded step trained on and attributes its gap to the five sources of the ledger. The
weights are recomputed from the run's folder: the newest checkpoint before the step (or the recipe's model) is retrained
on the rollouts in between.

examples:
  zerogap audit runs/quickstart                        the last recorded step
  zerogap audit runs/quickstart --step 12 --tokens 20  and the 20 worst tokens in context
  zerogap audit runs/quickstart --step 12 --html step12.html
"""

CAPSULE_EXAMPLES = """The file holds the step's samples, its weights (unless they are the recipe's own, version 0), the recipe, the
machine and the results. `zerogap replay` computes the same loss and gradient from it, to the bit.

examples:
  zerogap capsule runs/quickstart --step 12 step12.zip
  zerogap capsule runs/quickstart --step 1 step1.zip --with-weights
"""

REPLAY_EXAMPLES = """Computes loss and gradient of the step's first update and compares them with the capsule's: to the bit on a machine
of the same kind (processor, threads, kernels, torch), within rounding elsewhere. Exit code 0: equal; 1: different.

examples:
  zerogap replay step12.zip
  zerogap replay step1.zip --model ./where-the-recipes-model-is
"""


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``zerogap audit``."""
    _add_run_and_step(parser)
    parser.add_argument(
        "--html",
        type=_writable,
        metavar="OUT",
        help="write a page with every token coloured by its gap",
    )
    parser.add_argument(
        "--tokens", type=_count, default=5, metavar="K", help="worst tokens to show (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_quiet(parser)


def add_capsule(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``zerogap capsule``."""
    _add_run_and_step(parser)
    parser.add_argument("out", type=_new, metavar="OUT", help="file to create")
    parser.add_argument(
        "--with-weights", action="store_true", help="include the weights of version 0 too"
    )
    add_quiet(parser)


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``zerogap replay``."""
    parser.add_argument("capsule", metavar="CAPSULE", help="file that zerogap capsule wrote")
    parser.add_argument(
        "--model",
        help="where the recipe's model is on this machine (as model.path); default: as the recipe says",
    )
    add_quiet(parser)


def _add_run_and_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("--step", type=int, metavar="N", help="default: the last recorded step")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """``--quiet``, an argument of most commands."""
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _count(text: str) -> int:
    if not text.isdecimal():
        msg = f"{text!r} is not a number of tokens; give 0 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _new(text: str) -> str:
    """Refuses to replace a file: a capsule takes minutes to make, and others may refer to it."""
    if Path(text).is_file():
        msg = f"{text} exists, and a capsule never replaces a file; give another name, or remove it"
        raise argparse.ArgumentTypeError(msg)
    return _writable(text)


def _writable(text: str) -> str:
    """Refuses a bad path before a step is computed, not after."""
    path = Path(text)
    if path.is_dir():
        msg = f"{text} is a folder; give a file name"
        raise argparse.ArgumentTypeError(msg)
    nearest = next(parent for parent in path.absolute().parents if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        msg = f"{text} cannot be written: {nearest} is not a folder that you may write to; give another path"
        raise argparse.ArgumentTypeError(msg)
    return text
