"""How fast are rollouts, as a share of what this machine can do, and against transformers?

    python benchmarks/rollout.py [--shapes 8x8x64,32x8x64] [--json]

Prompts of about 100 tokens, every answer exactly as long as asked, log-probs on, temperature 1, fp32, and an empty
prefix cache before each run, as after a weight update. The sides take turns in processes of their own; a share or a
ratio is of runs that stood next to each other.
"""

import argparse
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measure.arguments import add_run_arguments, build_parser, describe_run, parse
from measure.flops import generation_work
from measure.prepare import Prepared, prepare
from measure.records import Measured, PeerMeasured
from measure.report import (
    headline,
    print_json,
    print_load_warning,
    print_profile,
    print_progress,
    print_table,
    show_spread,
)
from measure.shapes import RunShape
from measure.summary import summarise, summarise_peer
from measure.workers import Worker

_VARIANTS = {"plain": False, "with log-probs": True}
"""Of transformers' generate: whether it is asked for scores."""


def main() -> None:
    """Measure every shape, print the tables."""
    parser = build_parser("Rollout speed", repeats=3)
    add_run_arguments(parser, shapes="8x8x64,32x8x64")
    parser.add_argument("--no-transformers", action="store_true", help="measure zerogap alone")
    args = parse(parser)
    with TemporaryDirectory() as folder:
        most = max(shape.num_prompts for shape in args.shapes)
        prepared = prepare(args.model, Path(folder) / "model", num_prompts=most, threads=args.threads)  # fmt: skip
        print(prepared.describe(), flush=True)
        results = [_measure(args, prepared, shape) for shape in args.shapes]
    _print(results)
    if args.json:
        print_json({**headline(results[0]), "shapes": results, **describe_run(args)})


def _measure(args: argparse.Namespace, prepared: Prepared, shape: RunShape) -> dict[str, Any]:
    ours: list[Measured] = []
    peers: dict[str, list[PeerMeasured]] = {}
    options = {"threads": args.threads, "prepared": prepared, "shape": shape}
    with ExitStack() as stack:
        zerogap = stack.enter_context(Worker("zerogap", "measure.ours:Rollout", **options))
        if not args.no_transformers:
            build = "measure.transformers_side:TransformersRollout"
            transformers = stack.enter_context(Worker("transformers", build, **options))
            peers = {variant: [] for variant in _VARIANTS}
        for repeat in range(args.repeats):
            ours.append(zerogap.call("run", seed=repeat))
            print_progress(shape, repeat, "zerogap", ours[-1].seconds)
            for variant, runs in peers.items():
                runs.append(
                    transformers.call("run", seed=repeat, with_log_probs=_VARIANTS[variant])
                )
                print_progress(shape, repeat, f"transformers, {variant}", runs[-1].seconds)
        table = zerogap.call("profile", seed=args.repeats) if args.profile else None
    result = summarise(
        prepared.shape,
        shape,
        ours,
        lambda run: {"generate": generation_work(prepared.shape, run.prompts)},
    )
    found = {variant: summarise_peer(shape, runs, ours) for variant, runs in peers.items()}
    # To the faster variant, though our side always has log-probs.
    ratio = min((peer["ratio"]["median"] for peer in found.values()), default=None)
    result |= {"ratio_to_transformers": ratio, "transformers": found}
    if table is not None:
        print_profile(f"{shape}: where the time goes", table)
        result["profile"] = table.rows
    return result


def _print(results: list[dict[str, Any]]) -> None:
    rows = [row for result in results for row in _rows(result)]
    print_table("Rollouts: median (lowest..highest)", rows)
    print_table(
        "zerogap's engine: seconds a run",
        [{"shape": result["shape"], **result["seconds_by_part"]} for result in results],
    )
    peers = [peer for result in results for peer in result["transformers"].values()]
    print_load_warning([load for side in [*results, *peers] for load in side["others_load"]])


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    before, after = result["limit_gflops_before"], result["limit_gflops_after"]
    ours = {
        "shape": result["shape"],
        "side": "zerogap, with log-probs",
        "output tokens/s": show_spread(result["spread"]["tokens_per_s"]),
        "share of limit": f"{result['share_of_limit']:.1%}",
        "limit GFLOP/s, before..after": f"{before:.1f}..{after:.1f}",
        "peak GB": f"{result['peak_rss_gb']:.2f}",
        "zerogap is faster by": "",
    }
    peers = [
        {
            **dict.fromkeys(ours, ""),
            "shape": result["shape"],
            "side": f"transformers, {variant}",
            "output tokens/s": show_spread(peer["tokens_per_s"]),
            "peak GB": f"{peer['peak_rss_gb']:.2f}",
            "zerogap is faster by": f"{show_spread(peer['ratio'])}x",
        }
        for variant, peer in result["transformers"].items()
    ]
    return [ours, *peers]


if __name__ == "__main__":
    main()
