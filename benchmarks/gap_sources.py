"""How large is each source of the gap on a real model, if it is planted?

    python benchmarks/gap_sources.py --json

An engine with one planted difference answers the first prompts of recipes/quickstart.toml, and the ledger scores every
token. Rows are causes, columns are sources. Sources that were not planted are exactly 0, except ``tokens``: its raw view
shows in every row what re-encoding the text would change.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ledger import RECIPE, drawing
from zerogap.config import RunConfig
from zerogap.config.load import load_config
from zerogap.config.monitoring import LedgerConfig
from zerogap.data import reencode
from zerogap.engine import Engine
from zerogap.kernels import Gemm, kernel_report
from zerogap.ledger import ForwardScorer, Ledger, LedgerEntry
from zerogap.models import CausalLM
from zerogap.obs import GAP_SOURCES
from zerogap.run import Policy, load_policy
from zerogap.train import NativeTrainer
from zerogap.types import Sample
from zerogap.weights import WeightHistory

NUM_STEPS = 3
"""Age of the old weights, in optimizer steps."""


@dataclass(frozen=True)
class Bench:
    """A policy, engines that sample from it, and the ledger."""

    config: RunConfig
    policy: Policy

    def draw(self, model: CausalLM | None = None, *overrides: str) -> list[Sample]:
        """Completions of the first prompts by an engine on ``model`` (default: the policy's)."""
        config = load_config([RECIPE], overrides).config
        engine = Engine(
            model or self.policy.model,
            kv_cache_tokens=32_768,
            eos_token_ids=self.policy.eos_token_ids,
        )
        return drawing(config, self.policy)(engine)

    def audit(
        self,
        samples: Sequence[Sample],
        *,
        version: int = 0,
        history: WeightHistory | None = None,
        gemm: Gemm = "exact",
    ) -> LedgerEntry:
        """Audit every token with weights of ``version``."""
        scorer = ForwardScorer(
            self.policy.model,
            live_version=lambda: version,
            micro_batch_tokens=self.config.train.micro_batch_tokens,
            history=history,
            gemm=gemm,
        )
        ledger = Ledger(
            scorer,
            LedgerConfig(share=1.0),
            reencode=lambda ids: reencode(ids, self.policy.tokenizer),
            seed=0,
            is_exact=gemm == "exact",
        )
        return ledger.measure(samples, step=1, version=version)


def nothing(bench: Bench) -> LedgerEntry:
    """Exact mode."""
    return bench.audit(bench.draw())


def top_p(bench: Bench) -> LedgerEntry:
    """Sample from 0.9 of the probability mass."""
    return bench.audit(bench.draw(None, "--rollout.sampling.top_p", "0.9"))


def blas(bench: Bench) -> LedgerEntry:
    """The trainer multiplies with a BLAS."""
    return bench.audit(bench.draw(), gemm="blas")


def bf16(bench: Bench) -> LedgerEntry:
    """The engine computes in bf16."""
    return bench.audit(bench.draw(bench.policy.model.copied(precision="bf16")))


def old_weights(bench: Bench) -> LedgerEntry:
    """The trainer is ahead of the engine. Changes the policy, so it runs last."""
    config, history = bench.config, WeightHistory(1)
    history.remember(0, bench.policy.model)
    samples = bench.draw()
    trainer = NativeTrainer(
        bench.policy.model,
        config.train,
        config.algorithm,
        total_steps=config.run.steps,
    )
    for _ in range(NUM_STEPS):
        trainer.step(trainer.plan(samples))
    return bench.audit(samples, version=NUM_STEPS, history=history)


CAUSES: dict[str, Callable[[Bench], LedgerEntry]] = {
    "nothing": nothing,
    "top_p = 0.9": top_p,
    "a BLAS in the trainer": blas,
    "an engine in bf16": bf16,
    f"weights {NUM_STEPS} steps old": old_weights,
}


def measure() -> dict[str, dict]:
    """Mean |difference| of each source, in nats a token, under each cause."""
    config = load_config([RECIPE]).config
    bench = Bench(config, load_policy(config.model, seed=0))
    bench.policy.probe()
    entries = {name: plant(bench) for name, plant in CAUSES.items()}
    return {
        "causes": {name: _means(entry) for name, entry in entries.items()},
        "run": {
            "kernels": kernel_report(),
            "threads": torch.get_num_threads(),
            "recipe": RECIPE.name,
            "tokens": entries["nothing"].num_tokens,
            "differing_share": entries["nothing"].differing_share,
        },
    }


def _means(entry: LedgerEntry) -> dict[str, float]:
    metrics = entry.metrics()
    return {source: metrics[f"gap/{source}/raw/mean"] for source in GAP_SOURCES}


def _lines(result: dict[str, dict]) -> Iterator[str]:
    yield f"| planted | {' | '.join(GAP_SOURCES)} |"
    yield f"|---|{'---|' * len(GAP_SOURCES)}"
    for name, means in result["causes"].items():
        cells = ("0" if value == 0 else f"{value:.2g}" for value in means.values())
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield from (f"{name}: {value}" for name, value in result["run"].items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = measure()
    lines = [json.dumps(result)] if args.json else _lines(result)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
