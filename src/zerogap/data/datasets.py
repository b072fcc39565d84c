"""Builds training and evaluation prompts from the [data] section."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerogap.config.data import BuiltinData, DataConfig, FileData, ReasoningGymData
from zerogap.data.builtin import build_task, task_items
from zerogap.data.files import Fields, load_jsonl, load_parquet
from zerogap.data.gym import GymPrompts
from zerogap.data.items import PromptItem, TaskScore
from zerogap.errors import DataError


@dataclass(frozen=True, kw_only=True)
class PromptSets:
    """The prompts of a run.

    Training and evaluation prompts have no question in common, unless the user's two files do.
    """

    train: Sequence[PromptItem]
    evaluation: Sequence[PromptItem]
    score: TaskScore | None = None
    """The data set's score function; None for files."""
    score_may_hang: bool = False
    """Whether the score is another package's, and evaluates what a policy writes: call it where it can be ended. It can be pickled."""
    shuffle: bool = True
    """Whether each epoch has a new order."""


def build_prompt_sets(config: DataConfig) -> PromptSets:
    """Load or generate the prompts of the section.

    Raises:
        DataError: a missing or malformed file, an unknown data set, or too few questions to hold out.
        MissingExtra: the kind needs an optional package.
    """
    if isinstance(config, ReasoningGymData):
        gym = GymPrompts(
            config.dataset,
            params=config.params,
            seed=config.seed,
            size=config.size,
            eval_size=config.eval_size,
        )
        return PromptSets(
            train=gym.train, evaluation=gym.evaluation, score=gym.score, score_may_hang=True
        )
    return _builtin(config) if isinstance(config, BuiltinData) else _files(config)


def _builtin(config: BuiltinData) -> PromptSets:
    task = build_task(config.name, config.params)
    train = task_items(task, name=config.name, split="train", size=config.size, seed=config.seed)
    held_out = task_items(
        task, name=config.name, split="eval", size=config.eval_size, seed=config.seed
    )
    if len(held_out) < config.eval_size:
        msg = f"data.eval_size = {config.eval_size}: {config.name} with params {dict(config.params)} holds out only {len(held_out)} questions; set eval_size = {len(held_out)}, or widen data.params"
        raise DataError(msg)
    if not train:
        msg = f"data.params = {dict(config.params)}: {config.name} has no training questions with them; widen data.params"
        raise DataError(msg)

    def score(completion: str, item: PromptItem) -> float:
        return task.score(completion, item.answer or "")

    return PromptSets(train=train, evaluation=held_out, score=score)


def _files(config: FileData) -> PromptSets:
    load = {"jsonl": load_jsonl, "parquet": load_parquet}[config.kind]
    fields = Fields(
        prompt=config.prompt_field, answer=config.answer_field, rejected=config.rejected_field
    )
    train = load(Path(config.path), fields)
    if config.eval_path is not None:
        return PromptSets(
            train=train, evaluation=load(Path(config.eval_path), fields), shuffle=config.shuffle
        )
    if config.eval_size >= len(train):
        msg = f"data.eval_size = {config.eval_size}: {config.path} has only {len(train)} prompts, so none is left to train on; set a smaller eval_size"
        raise DataError(msg)
    cut = len(train) - config.eval_size
    return PromptSets(train=train[:cut], evaluation=train[cut:], shuffle=config.shuffle)
