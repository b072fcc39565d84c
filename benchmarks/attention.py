"""How long does attention take in a decode step, and what limits it: memory or multiplication?

    python benchmarks/attention.py --json

Decode steps with SmolLM2-135M's shape (9 query heads, 3 key/value heads of 64 dims, 30 layers). Each layer has its own keys and
values, too many for the processor's caches. Bytes that siblings share count once. The two bounds are bytes over
read bandwidth and operations over the GEMM rate, both measured between the cases; the larger one is the limit. Cases
alternate, and figures are medians over the rounds, because other jobs may share the machine.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import PAGE_SIZE, AttentionPlan, kernel_report, linear, paged_attention

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 30, 9, 3, 64
TOKEN_BYTES = 2 * NUM_KV_HEADS * HEAD_DIM * 4
COLD_BYTES = 256 << 20
"""Keys and values of all layers: far more than the processor's caches hold."""


@dataclass(frozen=True)
class Case:
    """One decode step: ``siblings`` rows of each prompt, with ``own`` tokens of their own each."""

    name: str
    prompts: int
    siblings: int
    prompt: int
    own: int

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values are read; whole shared pages count once."""
        shared = self.prompt // PAGE_SIZE * PAGE_SIZE
        return self.prompts * (shared + self.siblings * (self.prompt - shared + self.own))

    @property
    def bytes_needed(self) -> int:
        """Bytes that one layer reads."""
        return self.tokens * TOKEN_BYTES

    @property
    def flops(self) -> int:
        """Operations of one layer: a multiply and an add per (query, key, dim), for scores and for values."""
        pairs = self.prompts * self.siblings * NUM_HEADS * (self.prompt + self.own)
        return 4 * pairs * HEAD_DIM


CASES = (
    Case("8 prompts x 8 siblings, context 130", 8, 8, 97, 33),
    Case("16 siblings of a 1,000-token prompt, 64 own", 1, 16, 1000, 64),
    Case("16 siblings of a 64-token prompt, 64 own", 1, 16, 64, 64),
    Case("single sequence, context 1,024", 1, 1, 0, 1024),
    Case("single sequence, context 4,096", 1, 1, 0, 4096),
)


def page_table(case: Case) -> Tensor:
    """int32 [B, P], pages in random order; siblings share the whole pages of their prompt."""
    shared, width = case.prompt // PAGE_SIZE, -(-(case.prompt + case.own) // PAGE_SIZE)
    count = case.prompts * (shared + case.siblings * (width - shared))
    pages = iter(np.random.default_rng(0).permutation(count).tolist())
    rows = []
    for _prompt in range(case.prompts):
        common = [next(pages) for _ in range(shared)]
        rows += [
            common + [next(pages) for _ in range(width - shared)] for _ in range(case.siblings)
        ]
    return torch.tensor(rows, dtype=torch.int32)


def decode(case: Case) -> Iterator[float]:
    """Yields the seconds of attention in 30 layers, one decode step at a time."""
    table = page_table(case)
    num_pages, num_rows = int(table.max()) + 1, len(table)
    num_layers = max(NUM_LAYERS, COLD_BYTES // case.bytes_needed)
    k = torch.randn(num_layers, num_pages, NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE)
    v = torch.randn(num_layers, num_pages, NUM_KV_HEADS, PAGE_SIZE, HEAD_DIM)
    q = torch.randn(num_rows, NUM_HEADS, HEAD_DIM)
    sequence = torch.arange(num_rows, dtype=torch.int32)
    position = torch.full((num_rows,), case.prompt + case.own - 1, dtype=torch.int32)
    while True:
        plans = [
            AttentionPlan(table, sequence, position) for _ in range(num_layers // NUM_LAYERS + 1)
        ]
        began = time.perf_counter()
        for layer in range(num_layers):
            paged_attention(q, k[layer], v[layer], plans[layer // NUM_LAYERS], scale=0.125)
        yield (time.perf_counter() - began) * NUM_LAYERS / num_layers


def rates() -> Callable[[], dict[str, float]]:
    """A function that measures this machine's read and copy bandwidth and GEMM rate."""
    source, target = torch.zeros(COLD_BYTES // 4), torch.zeros(COLD_BYTES // 4)
    x, weight = torch.randn(512, 1024), torch.randn(1024, 1024)

    def seconds(function: Callable[[], object]) -> float:
        began = time.perf_counter()
        function()
        return time.perf_counter() - began

    def measure() -> dict[str, float]:
        return {
            "read_bytes_per_s": COLD_BYTES / seconds(source.sum),
            "copy_bytes_per_s": 2 * COLD_BYTES / seconds(lambda: target.copy_(source)),
            "product_flops_per_s": 2 * 512 * 1024 * 1024 / seconds(lambda: linear(x, weight)),
        }

    measure()
    return measure


def measure(repeats: int) -> dict[str, dict]:
    """Medians of all cases and rates, measured in turns."""
    measure_rates, steps = rates(), {case.name: decode(case) for case in CASES}
    for step in steps.values():
        next(step)
    taken: dict[str, list[float]] = {case.name: [] for case in CASES}
    found: list[dict[str, float]] = []
    for _ in range(repeats):
        for name, step in steps.items():
            taken[name].append(next(step))
            found.append(measure_rates())
    machine = {name: statistics.median(rate[name] for rate in found) for name in found[0]}
    return {
        "machine": machine,
        "cases": {case.name: _figures(case, taken[case.name], machine) for case in CASES},
        "ratios": _ratios({name: statistics.median(t) for name, t in taken.items()}, machine),
        "run": {"kernels": kernel_report(), "repeats": repeats},
    }


def _figures(case: Case, taken: list[float], machine: dict[str, float]) -> dict[str, float | str]:
    by_memory = NUM_LAYERS * case.bytes_needed / machine["read_bytes_per_s"]
    by_gemm = NUM_LAYERS * case.flops / machine["product_flops_per_s"]
    time_s = statistics.median(taken)
    return {
        "ms": 1e3 * time_s,
        "ms_least": 1e3 * min(taken),
        "ms_bound_memory": 1e3 * by_memory,
        "ms_bound_gemm": 1e3 * by_gemm,
        "binds": "memory" if by_memory > by_gemm else "gemm",
        "share_of_bound": max(by_memory, by_gemm) / time_s,
        "ns_per_kb_needed": 1e9 * time_s / (NUM_LAYERS * case.bytes_needed / 1e3),
    }


def _ratios(taken: dict[str, float], machine: dict[str, float]) -> dict[str, float]:
    _, long, short, *single = CASES

    def per_byte(case: Case) -> float:
        return taken[case.name] / case.bytes_needed

    return {
        "time_per_needed_byte_long_over_short_prompt": per_byte(long) / per_byte(short),
        "flops_per_needed_byte_long_over_short_prompt": (long.flops / long.bytes_needed)
        / (short.flops / short.bytes_needed),
        **{
            f"share_of_copy_bandwidth, {case.name}": NUM_LAYERS
            / per_byte(case)
            / machine["copy_bytes_per_s"]
            for case in single
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7, help="rounds of each case (default: 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = measure(args.repeats)
    lines = [json.dumps(result)] if args.json else _lines(result)
    sys.stdout.write("\n".join(lines) + "\n")


def _lines(result: dict[str, dict]) -> Iterator[str]:
    for title in ("machine", "ratios"):
        yield title
        yield from (f"  {name:56} {value:.4g}" for name, value in result[title].items())
    for name, figures in result["cases"].items():
        yield name
        yield from (
            f"  {key:56} {value if isinstance(value, str) else f'{value:.3g}'}"
            for key, value in figures.items()
        )


if __name__ == "__main__":
    main()
