"""Arguments of the commands that look at a recorded run."""

import argparse

AUDIT_EXAMPLES = """Scores every token that a recorded step trained on again, with the weights that the step started from, on every rung
of the ledger. Weights come from the run's folder alone: the newest checkpoint before the step (or the recipe's model), trained
again on the rollouts in between.

examples:
  zerogap audit runs/quickstart                        the last recorded step
  zerogap audit runs/quickstart --step 12 --tokens 20  and the 20 worst tokens in context
  zerogap audit runs/quickstart --step 12 --html step12.html
"""


def add_audit(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``zerogap audit``."""
    _add_run_and_step(parser)
    parser.add_argument(
        "--html", metavar="OUT", help="write a page of tokens coloured by their gap"
    )
    parser.add_argument(
        "--tokens", type=int, default=5, metavar="K", help="worst tokens to show (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _add_quiet(parser)


def _add_run_and_step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("--step", type=int, metavar="N", help="default: the last recorded step")


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress")
