"""What does the ledger cost, as a share of a training step?

    python benchmarks/ledger.py --json

Steps of recipes/quickstart.toml in this process: generate, audit, train, publish, with alternating rewards. The
audit of the default share starts before the trainer's step and ends after it, with the log-probs of the trainer's pass.
Its time is divided by that of the same step without it; measured moments apart, the ratio is more reliable than the seconds.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from zerogap.config import RunConfig
from zerogap.config.load import load_config
from zerogap.data import PromptEncoder, PromptStream, build_prompt_sets, reencode
from zerogap.engine import Engine
from zerogap.kernels import kernel_report
from zerogap.ledger import ForwardScorer, Ledger
from zerogap.run import Policy, load_policy
from zerogap.train import NativeTrainer, TrainMetrics
from zerogap.types import GenerateRequest, Sample
from zerogap.weights import weight_fingerprint

Result = TypeVar("Result")
RECIPE = Path(__file__).parent.parent / "recipes" / "quickstart.toml"
LIMIT = 0.03
"""Largest share of a step that an audit at the default share may take."""


class Timed:
    """Seconds of the parts of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, part: str, function: Callable[[], Result]) -> Result:
        """Call the function and add its time to ``part``; returns its result."""
        began = time.perf_counter()
        result = function()
        self.seconds[part] = time.perf_counter() - began
        return result


def steps(config: RunConfig) -> Iterator[dict[str, float]]:
    """Yields for each step the seconds of its parts, and what was audited."""
    policy = load_policy(config.model, seed=0)
    policy.probe()
    engine, draw = policy.engine(config.engine, seed=0), drawing(config, policy)
    trainer = NativeTrainer(
        policy.model,
        config.train,
        config.algorithm,
        total_steps=config.run.steps,
    )
    ledger = ledger_of(config, policy, engine)
    for step in itertools.count(1):
        timed = Timed()
        samples = timed("generate", lambda: draw(engine))
        engine.release_memory_occupation()
        audit = timed("audit", partial(ledger.start, samples, step=step, version=step - 1))
        trained = timed("train", partial(train, trainer, samples, version=step - 1))
        entry = timed("finish", partial(audit.finish, trained.old_log_probs))
        timed.seconds["audit"] += timed.seconds.pop("finish")
        timed("publish", partial(publish, policy, engine, step))
        yield {
            **timed.seconds,
            "audited": entry.num_tokens,
            "sampled": sum(sample.num_loss_tokens for sample in samples),
            "gap": 0.0 if entry.statistics is None else entry.statistics.total.open.max,
        }


def train(trainer: NativeTrainer, samples: list[Sample], *, version: int) -> TrainMetrics:
    """Plan and execute a step."""
    return trainer.step(trainer.plan(samples, exact_version=version))


def drawing(config: RunConfig, policy: Policy) -> Callable[[Engine], list[Sample]]:
    """A function that samples completions of the next prompts; alternating rewards give every group a signal."""
    sets = build_prompt_sets(config.data)
    encode = PromptEncoder(policy.tokenizer, config.prompt)
    stream = PromptStream(sets.train, seed=0, shuffle=sets.shuffle)
    sampling = replace(config.rollout.sampling.params(), n=config.rollout.group_size)

    def draw(engine: Engine) -> list[Sample]:
        prompts = [tuple(encode(item)) for item in stream.take(config.rollout.prompts_per_step)]
        outputs = engine.generate(
            [GenerateRequest(input_ids=ids, sampling_params=sampling) for ids in prompts]
        )
        return [
            Sample.from_output(
                output, group_id=output.rid, temperature=sampling.temperature
            ).scored(at % 2)
            for at, output in enumerate(outputs)
        ]

    return draw


def ledger_of(config: RunConfig, policy: Policy, engine: Engine) -> Ledger:
    """A ledger as in a run."""
    scorer = ForwardScorer(
        policy.model,
        live_version=lambda: engine.weight_version,
        micro_batch_tokens=config.train.micro_batch_tokens,
    )
    return Ledger(
        scorer,
        config.ledger,
        reencode=lambda ids: reencode(ids, policy.tokenizer),
        seed=0,
        is_exact=True,
        trainer_scores=config.train.updates_per_step == 1,
    )


def publish(policy: Policy, engine: Engine, version: int) -> None:
    """Publish a version; engine and trainer share their weights."""
    weight_fingerprint(policy.model)
    engine.set_weight_version(version)
    engine.resume_memory_occupation()


def measure(repeats: int) -> dict[str, dict]:
    """Medians over steps, without the first, which captures graphs and allocates memory."""
    config = load_config([RECIPE]).config
    taken = list(itertools.islice(steps(config), 1, repeats + 1))
    shares = [
        step["audit"] / (step["generate"] + step["train"] + step["publish"]) for step in taken
    ]
    share = statistics.median(shares)
    return {
        "ratios": {"audit_share_of_step": share, "limit": LIMIT},
        "step": {name: statistics.median(step[name] for step in taken) for name in taken[0]},
        "spread": {"least": min(shares), "most": max(shares)},
        "run": {
            "kernels": kernel_report(),
            "threads": torch.get_num_threads(),
            "repeats": repeats,
            "recipe": RECIPE.name,
            "is_within_limit": share <= LIMIT,
        },
    }


def main() -> None:
    """Measure and print; exit code 1 if the audit exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5, help="steps (default: 5)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = measure(args.repeats)
    lines = [json.dumps(result)] if args.json else _lines(result)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.exit(0 if result["run"]["is_within_limit"] else 1)


def _lines(result: dict[str, dict]) -> Iterator[str]:
    for title, figures in result.items():
        yield title
        for name, value in figures.items():
            yield f"  {name:24} {f'{value:.4g}' if isinstance(value, float) else value}"


if __name__ == "__main__":
    main()
