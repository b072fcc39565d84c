"""Questions of a built-in task: fixed lists for training and evaluation, without a common key."""

import dataclasses
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import islice
from random import Random
from typing import Any, Literal

from zerogap.data.items import PromptItem
from zerogap.data.tasks import TASKS, Drawn, Task
from zerogap.errors import DataError

Split = Literal["train", "eval"]

_HELD_OUT_ONE_IN = 5
"""One key in five is for evaluation. The key alone decides, so no seed or size moves a question to the other list."""

_PATIENCE = 3000
"""Stop after this many draws without a new question. Among a thousand equally likely questions, a given one is missed
with probability exp(-3)."""


def build_task(name: str, params: Mapping[str, object]) -> Task:
    """The task with this name and the difficulty in ``params``.

    Raises:
        DataError: unknown task or parameter, or a value out of range.
    """
    if name not in TASKS:
        msg = f"data.name = {name!r}: unknown task; choose one of {', '.join(TASKS)}"
        raise DataError(msg)
    made_by: Any = TASKS[name]
    fields: dict[str, Any] = {f.name: f.type for f in dataclasses.fields(made_by)}
    for key, value in params.items():
        if key not in fields or type(value) is not fields[key]:
            allowed = ", ".join(f"{k} ({t.__name__})" for k, t in fields.items())
            msg = f"data.params.{key} = {value!r}: {name} has no such parameter, or not of this type; allowed: {allowed}"
            raise DataError(msg)
    return made_by(**params)


def task_items(task: Task, *, name: str, split: Split, size: int, seed: int) -> list[PromptItem]:
    """Up to ``size`` distinct questions; fewer only if the split has no more.

    A larger size only extends the list. The same seed gives the same list on any machine.
    """
    drawn = islice(_distinct(task, split, Random(f"{name}/{split}/{seed}")), size)
    return [
        PromptItem(
            item_id=f"{name}-{split}-{k}",
            question=d.question,
            answer=d.answer,
            # A separate random stream, so that mistakes do not change the questions.
            rejected=task.mistake(d.answer, Random(f"{name}/{split}/{seed}/{d.question}")),
            metadata={"key": d.key},
        )
        for k, d in enumerate(drawn)
    ]


def _distinct(task: Task, split: Split, random: Random) -> Iterator[Drawn]:
    seen: set[str] = set()
    num_stale = 0
    while num_stale < _PATIENCE:
        drawn = task.draw(random)
        if drawn.question in seen or _split_of(drawn.key) != split:
            num_stale += 1
            continue
        num_stale = 0
        seen.add(drawn.question)
        yield drawn


def _split_of(key: str) -> Split:
    digest = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return "eval" if digest % _HELD_OUT_ONE_IN == 0 else "train"
