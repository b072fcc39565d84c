"""Ledgers over the tiny model that audit everything, and a scorer with routes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from helpers.tiny_engine import prompt, request
from zerogap.config.monitoring import LedgerConfig
from zerogap.data import Reencoding
from zerogap.engine import Engine
from zerogap.ledger import ForwardScorer, Ledger, LedgerEntry, Scorer
from zerogap.models import CausalLM
from zerogap.types import Sample
from zerogap.weights import WeightHistory


def same_ids(ids: np.ndarray) -> Reencoding:
    """A tokenizer that gives every text back as it was."""
    return Reencoding(np.array(ids), np.arange(len(ids)))


def scorer_of(
    model: CausalLM, *, version: int = 0, history: WeightHistory | None = None, **changes
) -> ForwardScorer:
    """The trainer's forward pass of a model that holds ``version``; ``changes`` are arguments of ForwardScorer."""
    defaults = {"micro_batch_tokens": 256}
    return ForwardScorer(model, live_version=lambda: version, history=history, **defaults | changes)


def entry_of(
    scorer: Scorer,
    samples: Sequence[Sample],
    *,
    version: int = 0,
    reencode: Callable[[np.ndarray], Reencoding] = same_ids,
    is_exact: bool = True,
    **config,
) -> LedgerEntry:
    """What a ledger finds on all of the samples; ``config`` are fields of LedgerConfig."""
    config = LedgerConfig(**{"share": 1.0} | config)
    ledger = Ledger(scorer, config, reencode=reencode, seed=0, is_exact=is_exact)
    return ledger.measure(samples, step=1, version=version)


def drawn(engine: Engine, *, num_prompts: int = 3, n: int = 4, **params) -> list[Sample]:
    """Samples of random prompts, whose reward is their index; ``params`` are sampling parameters."""
    outputs = engine.generate([
        request(prompt(20 + seed, seed=seed), n=n, sampling_seed=seed, **params)
        for seed in range(num_prompts)
    ])  # fmt: skip
    temperature = params.get("temperature", 1.0)
    return [
        Sample.from_output(o, group_id=o.rid, temperature=temperature).scored(o.index)
        for o in outputs
    ]


@dataclass(frozen=True)
class RoutedScorer:
    """A mixture of two whole models: a linear router sends each token, by its id and place, to one of them.

    The simplest thing with routes: the expert of a token gives the log-prob of the next one.
    """

    experts: tuple[Scorer, Scorer]
    router: np.ndarray
    """float64 [2]: its weights."""

    def score(self, samples, *, version, routes):
        used = [s.routes if routes == "replayed" and s.routes is not None else self.route(s) for s in samples]  # fmt: skip
        dense = [replace(sample, routes=None) for sample in samples]
        by_expert = [expert.score(dense, version=version, routes=routes) for expert in self.experts]
        return [
            np.concatenate([np.full(1, np.nan, np.float32), np.where(route[:-1, 0, 0], second[1:], first[1:])])
            for route, first, second in zip(used, *by_expert, strict=True)
        ]  # fmt: skip

    def route(self, sample: Sample) -> np.ndarray:
        """uint8 [T, 1, 1]: the expert that this router sends each token to."""
        features = np.stack([np.cos(sample.token_ids), np.sin(np.arange(len(sample)))])
        return (self.router @ features > 0).astype(np.uint8)[:, None, None]

    def drawn(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as an engine with this router and these experts would have recorded them."""
        routed = [replace(sample, routes=self.route(sample)) for sample in samples]
        scored = self.score(routed, version=0, routes="replayed")
        return [
            replace(sample, rollout_log_probs=column)
            for sample, column in zip(routed, scored, strict=True)
        ]
