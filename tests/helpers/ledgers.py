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
    defaults = {"vocab_limit": model.config.vocab_size, "micro_batch_tokens": 256}
    return ForwardScorer(model, live_version=lambda: version, history=history, **defaults | changes)


def entry_of(
    scorer: Scorer,
    samples: Sequence[Sample],
    *,
    version: int = 0,
    reencode: Callable[[np.ndarray], Reencoding] = same_ids,
    **config,
) -> LedgerEntry:
    """What a ledger finds on all of the samples; ``config`` are fields of LedgerConfig."""
    ledger = Ledger(scorer, LedgerConfig(**{"share": 1.0} | config), reencode=reencode, seed=0)
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

    The simplest thing with routes: replaying them gives the sampling pass's choice, a changed router another one.
    """

    experts: tuple[Scorer, Scorer]
    recorded: np.ndarray
    """float64 [2]: the router's weights when the tokens were drawn."""
    own: np.ndarray
    """float64 [2]: the trainer's."""

    has_routes = True

    def score(self, samples, *, version, routes):
        router = self.recorded if routes == "replayed" else self.own
        first, second = (
            expert.score(samples, version=version, routes="replayed") for expert in self.experts
        )
        chosen = [_goes_second(sample, router) for sample in samples]
        return [np.where(c, b, a) for c, a, b in zip(chosen, first, second, strict=True)]

    def drawn(self, samples: Sequence[Sample]) -> list[Sample]:
        """The samples as an engine with these experts would have reported them."""
        scored = self.score(samples, version=0, routes="replayed")
        return [
            replace(sample, rollout_log_probs=column)
            for sample, column in zip(samples, scored, strict=True)
        ]


def _goes_second(sample: Sample, router: np.ndarray) -> np.ndarray:
    features = np.stack([np.cos(sample.token_ids), np.sin(np.arange(len(sample)))])
    return router @ features > 0
