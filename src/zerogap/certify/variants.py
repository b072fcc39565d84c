"""Other ways to compute the same tokens, and other layouts of the same step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from zerogap.certify.rows import Reported
from zerogap.certify.subjects import Subjects
from zerogap.errors import EngineError, OutOfPages
from zerogap.kernels import PAGE_SIZE
from zerogap.types import GenerateOutput, GenerateRequest, Outcome, Sample

Requests = Sequence[GenerateRequest]

_FEW_ROWS = 8
_MOST_PAGES = 12
"""The probe batch needs more pages than this."""


def compute_variants(
    subjects: Subjects, requests: Requests, samples: Sequence[Sample]
) -> dict[str, Callable[[], Reported]]:
    """Name of a variant -> computes the ids and log-probs of the completions in ``samples``.

    Args:
        subjects: builds an engine or a trainer for each variant.
        requests: the requests of the completions.
        samples: the completions, for variants that score.
    """
    few = {"max_running": _FEW_ROWS, "max_scheduled_tokens": _FEW_ROWS}

    def generated(some: Requests = requests, **changes: Any) -> Reported:  # noqa: ANN401 - values of [engine]
        return Reported.of_outputs(subjects.engine(**changes).generate(some))

    def trained(**changes: Any) -> Reported:  # noqa: ANN401 - values of [train]
        return Reported.of_scores(samples, subjects.trainer(**changes).score(samples))

    return {
        "one at a time": lambda: generated(max_running=1),
        "in another order": lambda: generated(requests[::-1]),
        f"prompts in chunks of {_FEW_ROWS}": lambda: generated(**few),
        "without prefix cache": lambda: generated(prefix_cache=False),
        "from the prefix cache": lambda: _generated_twice(subjects, requests),
        "retracted and computed again": lambda: _retracted(subjects, requests),
        "scored by the engine": lambda: Reported.of_scores(samples, subjects.score(samples)),
        "scored by the trainer": trained,
        "scored by the trainer, each alone": lambda: trained(
            micro_batch_tokens=1, share_prompts=False
        ),
    }


def layouts(
    subjects: Subjects, samples: Sequence[Sample]
) -> dict[str, Callable[[], Mapping[str, Tensor]]]:
    """Name of a layout -> computes the gradient of one step on ``samples``; the next call overwrites the gradient."""
    samples = [_as_of_another_policy(sample) for sample in samples]
    failed = [s.failed(Outcome.INFRASTRUCTURE_FAILED, "part of the check") for s in samples[::3]]
    small = {"micro_batch_tokens": 64}

    def gradient(given: Sequence[Sample], **changes: Any) -> Mapping[str, Tensor]:  # noqa: ANN401 - values of [train]
        trainer = subjects.trainer(**{"updates_per_step": 1, "old_log_probs": "trainer"} | changes)
        return trainer.gradient(trainer.plan(given)).tensors

    return {
        "all at once": lambda: gradient(samples, micro_batch_tokens=65_536),
        "small micro-batches": lambda: gradient(samples, **small),
        "each sample alone": lambda: gradient(samples, micro_batch_tokens=1, share_prompts=False),
        "prompts not shared": lambda: gradient(samples, share_prompts=False),
        "in reverse order": lambda: gradient(samples[::-1], **small),
        "with failed samples": lambda: gradient([*failed, *samples], **small),
        "recompute": lambda: gradient(samples, recompute=True),
    }


def _as_of_another_policy(sample: Sample) -> Sample:
    """With log-probs that differ from the trainer's, so that corrections have an effect."""
    lower_T = 0.4 * (1 + np.sin(np.arange(len(sample), dtype=np.float32)))
    return replace(sample, rollout_log_probs=sample.rollout_log_probs - lower_T)


def _generated_twice(subjects: Subjects, requests: Requests) -> Reported:
    """The second generation, with the prompts in the prefix cache."""
    engine = subjects.engine(prefix_cache=True)
    engine.generate(requests)
    outputs = engine.generate(requests)
    if not any(output.num_cached_tokens for output in outputs):
        msg = "the prefix cache did not keep the prompts that were just computed, so the check cannot run; please report it"
        raise EngineError(msg)
    return Reported.of_outputs(outputs)


def _retracted(subjects: Subjects, requests: Requests) -> Reported:
    """With so few pages that a sequence is retracted."""
    for num_pages in range(_MOST_PAGES, 0, -1):
        outputs = _with_pages(subjects, requests, num_pages)
        if any(output.num_retractions for output in outputs):
            return Reported.of_outputs(outputs)
    msg = f"no sequence was retracted with up to {_MOST_PAGES} pages, so the check cannot run; please report it"
    raise EngineError(msg)


def _with_pages(subjects: Subjects, requests: Requests, num_pages: int) -> list[GenerateOutput]:
    try:
        return subjects.engine(kv_cache_tokens=num_pages * PAGE_SIZE).generate(requests)
    except OutOfPages:
        return []
