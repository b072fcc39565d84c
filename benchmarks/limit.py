"""How fast are this machine's matrix products at a model's shapes, right now?

    python benchmarks/limit.py --rows 64,256,2048

Prints GFLOP/s of each product, and their FLOP-weighted harmonic mean: what ``share_of_limit`` of the other scripts
divides by.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from measure.arguments import build_parser, describe_run, parse
from measure.flops import forward_work, gemm_flops
from measure.gemm import Limit
from measure.prepare import prepare
from measure.report import print_json, print_table, spread
from measure.workers import Worker


def main() -> None:
    """Measure and print."""
    parser = build_parser("GEMM rates at the model's shapes", repeats=3)
    parser.add_argument("--rows", default="64,256,2048", help="rows of the products, comma-separated (default: 64,256,2048)")  # fmt: skip
    args = parse(parser)
    with TemporaryDirectory() as folder:
        prepared = prepare(args.model, Path(folder) / "model", num_prompts=1, threads=args.threads)
    found = []
    with Worker(
        "limit", "measure.gemm:LimitWorker", threads=args.threads, shape=prepared.shape
    ) as worker:
        for num_rows in map(int, args.rows.split(",")):
            limits: list[Limit] = [
                worker.call("measure", num_rows=num_rows) for _ in range(args.repeats)
            ]
            work = forward_work(
                prepared.shape, num_rows=num_rows, num_head_rows=num_rows, num_keys=0
            )
            flops = gemm_flops(prepared.shape, work)
            found.append({
                "rows": num_rows,
                "limit_gflops": spread([limit.gflops(flops) for limit in limits]),
                "gflops": {name: spread([limit.rates[name] for limit in limits]) for name in flops},
            })  # fmt: skip
    print_table(
        "GFLOP/s, median of the repeats",
        [
            {"rows": row["rows"], **{name: s["median"] for name, s in row["gflops"].items()}, "limit": row["limit_gflops"]["median"]}
            for row in found
        ],
    )  # fmt: skip
    if args.json:
        print_json({"rows": found, **describe_run(args)})


if __name__ == "__main__":
    main()
