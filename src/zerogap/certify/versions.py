"""Promise 4: a token carries the version of the weights that sampled it, and no keys of older weights are read."""

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor

from zerogap.certify.finding import Finding
from zerogap.certify.probe_batch import samples_of
from zerogap.engine import Engine, GenerateProgress
from zerogap.types import GenerateRequest, Sample

Score = Callable[[Sequence[Sample]], Sequence[np.ndarray]]


def check_versions(
    engine: Engine,
    requests: Sequence[GenerateRequest],
    weight: Tensor,
    *,
    publish: Callable[[int], object],
    score: Score,
) -> Finding:
    """Generate; change a weight and publish half-way; generate again; restore the weight.

    Args:
        engine: on the trainer's weights, at version 0.
        requests: several requests, long enough to interrupt.
        weight: a weight that all outputs depend on; doubled for a while, then restored.
        publish: publishes the current weights to the engine under a version.
        score: the trainer's log-probs of samples, with the current weights.
    """
    temperature = requests[0].sampling_params.score_temperature
    before = samples_of(engine.generate(requests), temperature)

    def publish_half_way(progress: GenerateProgress) -> None:
        if engine.weight_version == 0 and not turned and progress.num_tokens >= half:
            turned.append(progress.num_tokens)
            # Retracted sequences are computed again, with the new weights.
            engine.pause_generation("retract")
            weight.mul_(2)
            publish(1)
            engine.continue_generation()

    turned: list[int] = []
    half = sum(sample.num_loss_tokens for sample in before) // 2
    problems: list[str] = []
    kept = weight.clone()
    try:
        across = samples_of(engine.generate(requests, on_progress=publish_half_way), temperature)
        after = samples_of(engine.generate(requests), temperature)
        problems += _wrong_scores(across, score(across), version=1, when="sampled after the change")
        problems += _wrong_scores(after, score(after), version=1, when="of the same prompts again")
    finally:
        weight.copy_(kept)
    publish(2)
    problems += _wrong_scores(across, score(across), version=0, when="sampled before the change")
    again = samples_of(engine.generate(requests), temperature)
    problems += _wrong_counts(across, after, again)
    if not _have_same_log_probs(again, before):
        problems.append("the restored weights give other log-probs than at first")
    if _have_same_log_probs(after, before):
        problems.append("changed weights gave the same log-probs: the engine does not read them")
    if problems:
        cure = "the engine used an old page or an old version number with new weights: do not train with it; please report this"
        return Finding(is_kept=False, figure="; ".join(problems), cure=cure)
    old, new = (sum(_num_of(sample, version) for sample in across) for version in (0, 1))
    return Finding(is_kept=True, figure=f"published half-way: {old} tokens of version 0 and {new} of version 1, each equal to the trainer's of its version; {sum(_num_of(s, 1) for s in after)} more on the same prompts used no old keys")  # fmt: skip


def _wrong_scores(
    samples: Sequence[Sample], scores: Sequence[np.ndarray], *, version: int, when: str
) -> list[str]:
    is_mine = [sample.weight_version == version for sample in samples]
    reported = np.concatenate([s.rollout_log_probs[w] for s, w in zip(samples, is_mine, strict=True)])  # fmt: skip
    scored = np.concatenate([s[w] for s, w in zip(scores, is_mine, strict=True)])
    if not len(reported):
        return [f"no token {when} carries version {version}"]
    num_wrong = int((reported != scored).sum())
    if not num_wrong:
        return []
    return [f"{num_wrong} of {len(reported)} tokens {when} carry version {version} but differ from the trainer's log-probs with its weights (by up to {np.abs(reported - scored).max():.3g} nats)"]  # fmt: skip


def _wrong_counts(
    across: Sequence[Sample], after: Sequence[Sample], again: Sequence[Sample]
) -> list[str]:
    """Tokens with a wrong version, or versions in the wrong order."""
    allowed = {"across the change": (across, {0, 1}), "after it": (after, {1}), "at the end": (again, {2})}  # fmt: skip
    found = {
        when: {int(v) for s in samples for v in s.weight_version[s.weight_version >= 0]} - versions
        for when, (samples, versions) in allowed.items()
    }
    wrong = [f"tokens {when} carry version {sorted(v)}" for when, v in found.items() if v]
    goes_back = any((np.diff(s.weight_version[s.weight_version >= 0]) < 0).any() for s in across)
    return [*wrong, *(["a sequence goes back to an older version"] if goes_back else [])]


def _num_of(sample: Sample, version: int) -> int:
    return int((sample.weight_version == version).sum())


def _have_same_log_probs(ours: Sequence[Sample], theirs: Sequence[Sample]) -> bool:
    return all(
        np.array_equal(a.rollout_log_probs, b.rollout_log_probs, equal_nan=True)
        for a, b in zip(ours, theirs, strict=True)
    )
