"""How long does a publish take, and how much of it is digest, copy and history?

    python benchmarks/weights.py --json

Random weights with SmolLM2-135M's shape (30 layers, 135 M parameters, tied head, fp32). Cases alternate, and figures are
medians over the rounds, since other jobs may share the machine. GB/s is the size of the weights (each storage once) over
the seconds of the case: a copy reads and writes that much, and a rounded publish also rounds twice.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from zerogap.engine import Engine
from zerogap.kernels import round_bf16
from zerogap.models import CausalLM, ModelConfig
from zerogap.weights import (
    CopiedWeights,
    Publisher,
    SharedWeights,
    WeightHistory,
    WeightVersions,
    digest_weights,
    named_weights,
)

SHAPE = ModelConfig(
    family="llama",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_positions=8192,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)


def build_cases(model: CausalLM) -> dict[str, Callable[[int], object]]:
    """What is timed, each a function of the version number."""
    weights = named_weights(model)
    history, once = WeightHistory(2), WeightHistory(1)
    once.remember(0, model)
    copy = CausalLM(SHAPE).init_weights(seed=1)
    own = _engine(copy)
    return {
        "digest": lambda version: digest_weights(weights),
        "digest of bf16 values": lambda version: digest_weights(weights, rounding=round_bf16),
        "remember a version": lambda version: history.remember(version, model),
        "load a version": lambda version: once.load_into(0, copy),
        "publish, shared": Publisher(
            SharedWeights(model), _engine(model), WeightVersions()
        ).publish,
        "publish, copied": Publisher(CopiedWeights(model), own, WeightVersions()).publish,
        "publish, rounded to bf16": Publisher(
            CopiedWeights(model, rounding=round_bf16), own, WeightVersions()
        ).publish,
    }


def _engine(model: CausalLM) -> Engine:
    return Engine(model, kv_cache_tokens=1024, eos_token_ids=(2,))


def measure(turns: int) -> dict[str, Any]:
    """Medians over the rounds: seconds and GB/s of each case."""
    model = CausalLM(SHAPE).init_weights(seed=0)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    cases = build_cases(model)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, run in cases.items():
            began_s = time.perf_counter()
            run(turn)
            seconds[name].append(time.perf_counter() - began_s)
    # The first round allocates memory.
    medians = {name: statistics.median(found[1:]) for name, found in seconds.items()}
    return {
        "weights_gb": num_bytes / 1e9,
        "threads": torch.get_num_threads(),
        "turns": turns,
        "cases": {
            name: {"seconds": round(s, 4), "gb_per_s": round(num_bytes / s / 1e9, 2)}
            for name, s in medians.items()
        },
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    report = measure(given.turns)
    sys.stdout.write((json.dumps(report, indent=2) if given.json else as_table(report)) + "\n")


def as_table(report: dict[str, Any]) -> str:
    """One line per case."""
    lines = [f"{report['weights_gb']:.2f} GB of weights, {report['threads']} threads"]
    lines += [
        f"{name:<26} {found['seconds']:8.3f} s {found['gb_per_s']:8.2f} GB/s"
        for name, found in report["cases"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
