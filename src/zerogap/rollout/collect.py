"""From prompts to scored groups: the whole way of one batch, in one place for training and evaluation.

Each prompt is one request for ``group_size`` completions; each completion becomes a sample with an outcome,
and the ones that ended well get a reward. What fails is recorded under its reason and has no reward:

* tampered: an id that the tokenizer does not have;
* aborted: the generator was told to stop it;
* infrastructure_failed: the generator returned no such completion;
* verifier_failed: the reward function raised, took too long or gave no finite number.

An exception of the generator, or a log-prob that is missing or impossible, is no sample's fault and passes
through: the step stops.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zerogap.data import PromptItem
from zerogap.errors import GenerationFailed, RewardFailed
from zerogap.rollout.generator import Generator, Progress
from zerogap.rollout.noise import noise_seed
from zerogap.rollout.outcomes import sample_of
from zerogap.rollout.rewards import RewardRequest, RewardResult, Rewards
from zerogap.rollout.shaping import Shaping, shaped
from zerogap.types import (
    GenerateOutput,
    GenerateRequest,
    Group,
    Outcome,
    Sample,
    SamplingParams,
)


@dataclass(frozen=True, kw_only=True)
class CollectProgress:
    """How far grading is; generation reports in the generator's own record."""

    num_rewarded: int
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The groups of one batch, in the order of its prompts."""

    groups: tuple[Group, ...]
    items: Mapping[str, PromptItem]
    """The prompt of each group, by group id."""

    @property
    def samples(self) -> list[Sample]:
        """All samples, failed ones too."""
        return [sample for group in self.groups for sample in group.samples]

    @property
    def outcome_counts(self) -> dict[Outcome, int]:
        """Samples under each outcome; every outcome has an entry."""
        counts = Counter(sample.outcome for sample in self.samples)
        return {outcome: counts[outcome] for outcome in Outcome}


class Collector:
    """Draws and rewards completions. Holds no state between batches: the same call gives the same samples."""

    def __init__(
        self,
        generator: Generator,
        rewards: Rewards,
        *,
        encode: Callable[[PromptItem], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        vocab_limit: int,
        sampling: SamplingParams,
        group_size: int,
        seed: int,
        shapings: Mapping[str, Shaping] | None = None,
    ) -> None:
        """Keep what every batch uses.

        Args:
            generator: continues prompts.
            rewards: scores completions; closed by whoever built it.
            encode: prompt ids of an item.
            decode: text of completion ids, for generators that return none.
            vocab_limit: ids from here on mean nothing.
            sampling: how completions are drawn; ``n`` and ``sampling_seed`` are set here.
            group_size: completions of a prompt.
            seed: the run's; with step and place it fixes each prompt's noise.
            shapings: added to the rewards, by the name of the part that they become.
        """
        self._generator = generator
        self._rewards = rewards
        self._encode = encode
        self._decode = decode
        self._vocab_limit = vocab_limit
        self._sampling = sampling
        self._group_size = group_size
        self._seed = seed
        self._shapings = dict(shapings or {})

    def collect(
        self,
        items: Sequence[PromptItem],
        *,
        step: int,
        purpose: str = "train",
        on_progress: Progress | None = None,
    ) -> Rollouts:
        """``draw``, then ``reward``. Arguments and errors as there."""
        drawn = self.draw(items, step=step, purpose=purpose, on_progress=on_progress)
        return self.reward(drawn, on_progress=on_progress)

    def draw(
        self,
        items: Sequence[PromptItem],
        *,
        step: int,
        purpose: str = "train",
        on_progress: Progress | None = None,
    ) -> Rollouts:
        """``group_size`` completions of each prompt, without rewards.

        Args:
            items: prompts; one that occurs twice makes two groups with different noise.
            step: with ``purpose`` and the place in ``items``, the group's id and the seed of its noise.
            purpose: keeps the ids and noise of training and evaluation apart.
            on_progress: gets the generator's records.

        Raises:
            GenerationFailed: the generator returned what nobody asked for.
            Exception: whatever the generator raises; nothing of the batch is kept.
        """
        named = {f"{purpose}-{step:06d}-{place:04d}": item for place, item in enumerate(items)}
        requests = {group_id: self._request(group_id, item) for group_id, item in named.items()}
        outputs = self._generator.generate(list(requests.values()), on_progress=on_progress)
        found = _by_sibling([self._with_text(output) for output in outputs], requests.values())
        samples = [
            sample_of(
                request,
                found.get((request.rid, index)),
                group_id=group_id,
                index=index,
                vocab_limit=self._vocab_limit,
            )
            for group_id, request in requests.items()
            for index in range(self._group_size)
        ]
        return Rollouts(groups=group_samples(samples), items=named)

    def reward(self, drawn: Rollouts, *, on_progress: Progress | None = None) -> Rollouts:
        """The same samples with their rewards, or with the reason why there is none.

        Args:
            drawn: from ``draw``; samples that failed already are not rewarded.
            on_progress: gets a ``CollectProgress`` after each reward.
        """
        samples = drawn.samples
        places = [place for place, sample in enumerate(samples) if sample.outcome.is_valid]
        requests = [
            RewardRequest(completion=s.text, item=drawn.items[s.group_id], sample=s)
            for s in (samples[place] for place in places)
        ]
        results = self._rewards.compute(requests, on_done=_counter(on_progress, len(places)))
        for place, result in zip(places, results, strict=True):
            samples[place] = _with_reward(samples[place], result)
        samples = shaped(samples, self._shapings)
        return Rollouts(groups=group_samples(samples), items=drawn.items)

    def _request(self, group_id: str, item: PromptItem) -> GenerateRequest:
        seed = noise_seed(self._seed, group_id, item.item_id)
        params = replace(self._sampling, n=self._group_size, sampling_seed=seed)
        return GenerateRequest(input_ids=tuple(self._encode(item)), sampling_params=params)

    def _with_text(self, output: GenerateOutput) -> GenerateOutput:
        if output.text is not None:
            return output
        return replace(output, text=self._decode(output.output_ids.tolist()))


def group_samples(samples: Sequence[Sample]) -> tuple[Group, ...]:
    """Samples by their group id, whatever order they arrive in; groups in order of first arrival."""
    members: dict[str, list[Sample]] = {}
    for sample in samples:
        members.setdefault(sample.group_id, []).append(sample)
    return tuple(Group(group_id=name, samples=tuple(found)) for name, found in members.items())


def _by_sibling(
    outputs: Sequence[GenerateOutput], requests: Iterable[GenerateRequest]
) -> dict[tuple[str, int], GenerateOutput]:
    asked = {(r.rid, index) for r in requests for index in range(r.sampling_params.n)}
    returned = [(output.rid, output.index) for output in outputs]
    found = dict(zip(returned, outputs, strict=True))
    if len(found) != len(returned) or not found.keys() <= asked:
        msg = f"the generator returned {len(returned)} outputs ({len(found)} different ones) for {len(asked)} completions, some of which nobody asked for; each request's rid and each index below n may come back once"
        raise GenerationFailed(msg)
    return found


def _counter(on_progress: Progress | None, num_samples: int) -> Callable[[], None]:
    done = itertools.count(1)

    def on_done() -> None:
        progress = CollectProgress(num_rewarded=next(done), num_samples=num_samples)
        if on_progress is not None:
            on_progress(progress)

    return on_done


def _with_reward(sample: Sample, result: RewardResult | RewardFailed) -> Sample:
    if isinstance(result, RewardFailed):
        return sample.failed(Outcome.VERIFIER_FAILED, str(result))
    return sample.scored(result.value, result.parts)
