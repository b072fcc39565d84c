"""How fast is one whole GRPO step, as a share of what this machine can do, and against TRL?

    python benchmarks/step.py [--shapes 8x8x64] [--json]

A step generates all answers, rewards them (pseudo-random numbers, so that every group has a signal), computes
advantages, trains once on everything and publishes the weights to the engine. TRL's GRPOTrainer does the same with
the same model, prompts, lengths and objective. The sides take turns in processes of their own.

Two shares are printed. ``share_of_limit`` counts the work as it is done here, a group's prompt once;
``conventional_share`` counts 2 N a generated or prefilled token and 6 N a trained one (8 N with recomputation) for
every token of every sequence, as papers do: it credits work that sharing prompts avoids, so it is no efficiency.
"""

import argparse
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from measure.arguments import add_run_arguments, build_parser, describe_run, parse
from measure.flops import (
    PromptWork,
    Work,
    conventional_flops,
    generation_work,
    num_sequence_tokens,
    num_training_rows,
    training_work,
)
from measure.gemm import share_of_limit
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

_LEARNING_RATE = 1e-6


def main() -> None:
    """Measure every shape, print the tables."""
    args = _parse()
    with TemporaryDirectory() as folder:
        most = max(shape.num_prompts for shape in args.shapes)
        prepared = prepare(args.model, Path(folder) / "model", num_prompts=most, threads=args.threads)  # fmt: skip
        print(prepared.describe(), flush=True)
        results = [_measure(args, prepared, shape, folder) for shape in args.shapes]
    _print(results)
    if args.json:
        print_json({**headline(results[0]), "shapes": results, **describe_run(args)})


def _parse() -> argparse.Namespace:
    parser = build_parser("Speed of a whole GRPO step", repeats=3)
    add_run_arguments(parser, shapes="8x8x64")
    parser.add_argument("--no-trl", action="store_true", help="measure zerogap alone")
    for name, default, meaning in (
        ("trl-steps", 1, "measured steps of TRL, each about four minutes at 8x8x64"),
        ("trl-micro-batch", 8, "sequences in one forward pass of TRL"),
        ("micro-batch-tokens", 1024, "zerogap's train.micro_batch_tokens"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{meaning} (default: {default})"
        )
    parser.add_argument("--recompute", action="store_true", help="zerogap's train.recompute")
    args = parse(parser)
    if not (args.no_trl or 1 <= args.trl_steps <= args.repeats):
        parser.error(f"--trl-steps {args.trl_steps}: each needs one of the {args.repeats} --repeats beside it, and at least one is measured (or --no-trl)")  # fmt: skip
    for shape in args.shapes:
        if not args.no_trl and shape.num_sequences % args.trl_micro_batch:
            parser.error(f"--trl-micro-batch {args.trl_micro_batch} does not divide the {shape.num_sequences} sequences of {shape}")  # fmt: skip
    return args


def _measure(
    args: argparse.Namespace, prepared: Prepared, shape: RunShape, scratch: str
) -> dict[str, Any]:
    train = {
        "learning_rate": _LEARNING_RATE,
        "micro_batch_tokens": args.micro_batch_tokens,
        "recompute": args.recompute,
    }
    peer_options = {
        "output_dir": scratch,
        "micro_batch": args.trl_micro_batch,
        "learning_rate": _LEARNING_RATE,
    }
    rows = _micro_batch_rows(prepared, shape, args.micro_batch_tokens)
    ours: list[Measured] = []
    peer: list[PeerMeasured] = []
    options = {"threads": args.threads, "prepared": prepared, "shape": shape}
    with ExitStack() as stack:
        zerogap = stack.enter_context(
            Worker("zerogap", "measure.ours:Step", **options, train=train)
        )
        if not args.no_trl:
            trl = stack.enter_context(
                Worker("TRL", "measure.trl_side:TrlStep", **options, **peer_options)
            )
        for repeat in range(args.repeats):
            ours.append(zerogap.call("run", seed=repeat, num_training_rows=rows))
            print_progress(shape, repeat, "zerogap", ours[-1].seconds)
            if not args.no_trl and repeat < args.trl_steps:
                peer.append(trl.call("run", seed=repeat))
                print_progress(shape, repeat, "TRL", peer[-1].seconds)
        table = zerogap.call("profile", seed=args.repeats) if args.profile else None
    result = _summary(prepared, shape, ours, peer, recompute=args.recompute)
    if table is not None:
        print_profile(f"{shape}: where the time goes", table)
        result["profile"] = table.rows
    return result


def _micro_batch_rows(prepared: Prepared, shape: RunShape, budget: int) -> int:
    """Rows of an average micro-batch, for the limit."""
    answers = (shape.max_new_tokens,) * shape.group_size
    prompts = prepared.prompt_ids[: shape.num_prompts]
    total = num_training_rows([PromptWork(len(ids), 0, answers) for ids in prompts])
    return math.ceil(total / math.ceil(total / budget))


def _summary(
    prepared: Prepared,
    shape: RunShape,
    ours: Sequence[Measured],
    peer: Sequence[PeerMeasured],
    *,
    recompute: bool,
) -> dict[str, Any]:
    model = prepared.shape

    def count_works(run: Measured) -> dict[str, Work]:
        return {
            "generate": generation_work(model, run.prompts),
            "train": training_work(model, run.prompts, recompute=recompute),
        }

    result = summarise(model, shape, ours, count_works)
    tokens = num_sequence_tokens(ours[0].prompts)
    factor = 2 + (8 if recompute else 6)
    conventional = conventional_flops(model, num_tokens=tokens, factor=factor)
    trl = summarise_peer(shape, peer, ours) if peer else None
    return result | {
        "step_s": result["seconds"],
        "conventional_share": share_of_limit(
            conventional, seconds=result["seconds"], limit=result["limit_gflops"]
        ),
        "num_training_rows": median(run.num_training_rows for run in ours),
        "num_micro_batches": median(run.num_micro_batches for run in ours),
        "ratio_to_trl": trl["ratio"]["median"] if trl else None,
        "trl": trl,
    }


def _print(results: list[dict[str, Any]]) -> None:
    rows = [row for result in results for row in _rows(result)]
    print_table("A whole GRPO step: median (lowest..highest)", rows)
    print_table(
        "zerogap's step: seconds by part (train/... are parts of train)",
        [{"shape": result["shape"], **result["seconds_by_part"]} for result in results],
    )
    sides = [*results, *(result["trl"] for result in results if result["trl"])]
    print_load_warning([load for side in sides for load in side["others_load"]])


def _rows(result: dict[str, Any]) -> list[dict[str, str]]:
    before, after = result["limit_gflops_before"], result["limit_gflops_after"]
    generate_s = result["seconds_by_part"]["generate"]
    ours = {
        "shape": result["shape"],
        "side": "zerogap",
        "step s": show_spread(result["spread"]["seconds"]),
        "generate s": f"{generate_s:.1f}",
        "the rest s": f"{result['step_s'] - generate_s:.1f}",
        "share of limit": f"{result['share_of_limit']:.1%}",
        "(conventional)": f"{result['conventional_share']:.1%}",
        "limit GFLOP/s, before..after": f"{before:.1f}..{after:.1f}",
        "peak GB": f"{result['peak_rss_gb']:.2f}",
        "zerogap is faster by": "",
    }
    peer = result["trl"]
    if peer is None:
        return [ours]
    generate_s = peer["generate_s"]["median"]
    theirs = {
        **dict.fromkeys(ours, ""),
        "shape": result["shape"],
        "side": "TRL",
        "step s": show_spread(peer["seconds"]),
        "generate s": f"{generate_s:.1f}",
        "the rest s": f"{peer['seconds']['median'] - generate_s:.1f}",
        "peak GB": f"{peer['peak_rss_gb']:.2f}",
        "zerogap is faster by": f"{show_spread(peer['ratio'])}x",
    }
    return [ours, theirs]


if __name__ == "__main__":
    main()
