"""How fast are a rollout and a training step beside busy processes?

    python benchmarks/busy_cores.py --json

Random weights of SmolLM2-135M's shape, prompts of 100 tokens. This script starts and ends the neighbours: processes with one
busy thread. Each round measures all cases alone, beside one neighbour and beside two. With T threads on C cores
and k neighbours, a fair scheduler gives C / (T + k) of the quiet speed. Exit code 1 if less than 75 % of that is left.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from zerogap.config.env import let_torch_threads_sleep
from zerogap_bench.machine import OthersLoad
from zerogap_bench.shapes import RunShape

PROMPT_TOKENS = 100
NEIGHBOURS = (0, 1, 2)
LEAST_SHARE = 0.75
"""Smallest allowed share of the fair share."""
SETTLE_S = 0.5
"""Time for a new neighbour to start its loop."""


def build_cases(shape: RunShape) -> dict[str, Callable[[], object]]:
    """The timed work: a rollout of the shape, and a training step on one of its groups."""
    import torch

    from zerogap.algorithms import Algorithm
    from zerogap.config.train import TrainConfig
    from zerogap.engine import Engine
    from zerogap.models import CausalLM, ModelConfig
    from zerogap.train import NativeTrainer
    from zerogap.types import GenerateRequest, Sample, SamplingParams

    config = ModelConfig(
        family="llama", vocab_size=49_152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
        num_kv_heads=3, head_dim=64, max_positions=8192, tie_word_embeddings=True, eos_token_ids=(2,),
    )  # fmt: skip
    model = CausalLM(config).init_weights(seed=0)
    length = PROMPT_TOKENS + shape.max_new_tokens + 32
    engine = Engine(model, kv_cache_tokens=shape.num_sequences * length, eos_token_ids=(2,))
    trainer = NativeTrainer(
        model,
        TrainConfig(learning_rate=1e-7),
        Algorithm(),
        total_steps=1_000_000,
    )
    drawn = torch.Generator().manual_seed(0)
    prompts = torch.randint(
        3, config.vocab_size, (shape.num_prompts, PROMPT_TOKENS), generator=drawn
    )
    sampling = SamplingParams(
        n=shape.group_size, max_new_tokens=shape.max_new_tokens, ignore_eos=True
    )
    requests = [
        GenerateRequest(input_ids=tuple(ids), sampling_params=sampling) for ids in prompts.tolist()
    ]

    def rollout() -> list[Any]:
        engine.flush_cache()
        return engine.generate(requests)

    samples = [
        Sample.from_output(output, group_id=output.rid, temperature=1.0).scored(at % 2)
        for at, output in enumerate(engine.generate(requests[:1]))
    ]
    return {"rollout": rollout, "train": lambda: trainer.step(trainer.plan(samples))}


@contextmanager
def neighbours(number: int) -> Generator[None]:
    """Run this many busy single-threaded processes during the block."""
    with ExitStack() as stack:
        for _ in range(number):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        if number:
            time.sleep(SETTLE_S)
        yield


def measure(shape: RunShape, *, threads: int | None, repeats: int) -> dict[str, Any]:
    """Medians over the rounds. The first run of a case captures graphs and allocates memory, and does not count."""
    let_torch_threads_sleep()
    import torch

    from zerogap.kernels import kernel_report

    if threads is not None:
        torch.set_num_threads(threads)
    threads = torch.get_num_threads()
    cases = build_cases(shape)
    for run in cases.values():
        run()
    seconds = {(name, number): [] for name in cases for number in NEIGHBOURS}
    others = []
    for _, number in itertools.product(range(repeats), NEIGHBOURS):
        with neighbours(number):
            for name, run in cases.items():
                with OthersLoad() as load:
                    run()
                seconds[name, number].append(load.wall_s)
                if number == 0 and load.share is not None:
                    others.append(load.share)
    found = {name: _figures({n: seconds[name, n] for n in NEIGHBOURS}, threads) for name in cases}
    shares = [f"share_of_fair_{n}" for n in NEIGHBOURS[1:]]
    return {
        "ratios": {f"{name}/{share}": found[name][share] for name in cases for share in shares},
        **found,
        "run": {
            "kernels": kernel_report(),
            "threads": threads,
            "cores": num_cores(),
            "repeats": repeats,
            "shape": str(shape),
            "load_of_others_when_quiet": max(others, default=None),
            "least_share": LEAST_SHARE,
            "is_within_limit": all(
                found[name][share] >= LEAST_SHARE for name in cases for share in shares
            ),
        },
    }


def _figures(seconds: dict[int, list[float]], threads: int) -> dict[str, float]:
    medians = {number: statistics.median(s) for number, s in seconds.items()}
    figures = {f"seconds_{number}": s for number, s in medians.items()}
    figures |= {f"spread_{number}": max(s) / min(s) for number, s in seconds.items()}
    for number in NEIGHBOURS[1:]:
        kept = medians[0] / medians[number]
        fair = min(1.0, num_cores() / (threads + number))
        figures |= {f"kept_{number}": kept, f"share_of_fair_{number}": kept / fair}
    return figures


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Measure and print; exit code 1 if neighbours slow the work down too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="default: torch's own number")
    parser.add_argument("--shape", type=RunShape.parse, default=RunShape(8, 8, 64))
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args()
    result = measure(args.shape, threads=args.threads, repeats=args.repeats)
    lines = [json.dumps(result)] if args.json else _lines(result)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(0 if result["run"]["is_within_limit"] else 1)


def _lines(result: dict[str, dict[str, Any]]) -> Iterator[str]:
    for title, figures in result.items():
        yield title
        for name, value in figures.items():
            yield f"  {name:26} {f'{value:.4g}' if isinstance(value, float) else value}"


if __name__ == "__main__":
    main()
