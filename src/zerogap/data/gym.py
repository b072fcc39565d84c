"""Questions and scores of the reasoning-gym package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from zerogap.data.items import PromptItem
from zerogap.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_ATTEMPTS = 100
"""Attempts to draw a training question that is not an evaluation question."""


class GymPrompts:
    """A reasoning-gym data set, split in two.

    Items depend on (seed + index), so nearby seeds share most items. Both splits therefore use one seed and different
    indices. A later item replaces a training question that is also an evaluation question.
    """

    def __init__(
        self, name: str, *, params: Mapping[str, Any], seed: int, size: int, eval_size: int
    ) -> None:
        self._name = name
        self._source = _create(name, params, seed=seed, size=size + eval_size)
        self.score = GymScore(name, params, seed=seed, size=size + eval_size, source=self._source)
        """The data set's score of a completion."""
        self._stride = size + eval_size
        self.evaluation = [self._item(size + k) for k in range(eval_size)]
        """Evaluation prompts, generated at once."""
        self._eval_questions = {item.question for item in self.evaluation}
        self.train: Sequence[PromptItem] = _Lazy(self, size)
        """Training prompts, each generated on first use: some data sets take a second per item."""

    def train_item(self, index: int) -> PromptItem:
        """Training prompt ``index``; always the same."""
        for attempt in range(_ATTEMPTS):
            item = self._item(index + attempt * self._stride)
            if item.question not in self._eval_questions:
                return item
        msg = f"data.dataset = {self._name!r}: {_ATTEMPTS} draws gave only questions that are held out for evaluation ({len(self._eval_questions)} different ones); lower data.eval_size or widen data.params"
        raise DataError(msg)

    def _item(self, index: int) -> PromptItem:
        entry = self._source[index]
        answer = entry["answer"]
        return PromptItem(
            item_id=f"{self._name}-{index}",
            question=entry["question"],
            answer=None if answer is None else str(answer),
            metadata={"entry": entry},
        )


class GymScore:
    """The score of a data set. A pickle holds its name and parameters only: another process makes the data set again."""

    def __init__(
        self,
        name: str,
        params: Mapping[str, Any],
        *,
        seed: int,
        size: int,
        source: ProceduralDataset,
    ) -> None:
        self._made_of = name, dict(params), seed, size
        self._source = source

    def __call__(self, completion: str, item: PromptItem) -> float:
        """The score of the completion, without surrounding white space."""
        return float(self._source.score_answer(completion.strip(), entry=item.metadata["entry"]))

    def __reduce__(self) -> tuple[Any, ...]:
        return _gym_score, self._made_of


def _gym_score(name: str, params: Mapping[str, Any], seed: int, size: int) -> GymScore:
    source = _create(name, params, seed=seed, size=size)
    return GymScore(name, params, seed=seed, size=size, source=source)


class _Lazy(Sequence[PromptItem]):
    def __init__(self, prompts: GymPrompts, size: int) -> None:
        self._prompts = prompts
        self._size = size
        self._made: dict[int, PromptItem] = {}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> PromptItem: ...
    @overload
    def __getitem__(self, index: slice) -> list[PromptItem]: ...
    def __getitem__(self, index: int | slice) -> PromptItem | list[PromptItem]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        place = index % self._size
        if place not in self._made:
            self._made[place] = self._prompts.train_item(place)
        return self._made[place]


def _create(name: str, params: Mapping[str, Any], *, seed: int, size: int) -> ProceduralDataset:
    try:
        import reasoning_gym
    except ImportError as error:
        msg = f"data.kind = 'reasoning_gym' (dataset {name!r}) needs the reasoning-gym package; install it with pip install 'zerogap[tasks]'"
        raise MissingExtra(msg) from error
    if name not in reasoning_gym.factory.DATASETS:
        msg = f"data.dataset = {name!r}: reasoning-gym has no such data set; it has {', '.join(sorted(reasoning_gym.factory.DATASETS))}"
        raise DataError(msg)
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **params)
    except (TypeError, ValueError, AssertionError) as error:
        msg = f"data.params = {dict(params)!r}: reasoning-gym's {name!r} refuses them ({error}); use fields of its config class with allowed values"
        raise DataError(msg) from error
