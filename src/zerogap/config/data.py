"""[data]: where prompts come from. A union on ``kind``; every kind has training and evaluation prompts."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.config.section import Section, TomlValue


class FileData(Section):
    """Prompts in a file: what jsonl and parquet have in common."""

    kind: Literal["jsonl", "parquet"]
    """Form of the file."""
    path: str
    """Training prompts; relative to the working directory."""
    prompt_field: str = "prompt"
    """Field with the question, or with a list of chat messages."""
    answer_field: str | None = None
    """Field with the reference answer that the reward compares with, and that loss.kind = "sft" and "dpo" train on; none:
    prompts have no answer."""
    rejected_field: str | None = None
    """Field with a worse answer, for loss.kind = "dpo"."""
    shuffle: bool = True
    """Draw each epoch in a new order, fixed by run.seed; false keeps the file's."""
    eval_path: str | None = None
    """Evaluation prompts, in a file of the same form."""
    eval_size: int = Field(0, ge=0)
    """Without eval_path: the last so many lines of path are for evaluation, and are never trained on."""

    def problems(self) -> Iterator[str]:
        """Two sources of evaluation prompts."""
        if self.eval_path is not None and self.eval_size:
            yield f"eval_size = {self.eval_size}, eval_path = {self.eval_path!r}: evaluation prompts come from one of them; remove one (evaluate.max_prompts limits how many are used)"

    @property
    def has_evaluation(self) -> bool:
        """Whether there are evaluation prompts."""
        return self.eval_path is not None or self.eval_size > 0


class JsonlData(FileData):
    """One JSON object a line."""

    kind: Literal["jsonl"]
    """A file of JSON lines."""


class ParquetData(FileData):
    """A parquet file (needs the extra ``parquet``)."""

    kind: Literal["parquet"]
    """A parquet file."""


class GeneratedData(Section):
    """Prompts made by a program: training and evaluation prompts are disjoint."""

    kind: Literal["reasoning_gym", "builtin"]
    """Who makes the prompts."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Arguments of the generator."""
    size: int = Field(1000, ge=1)
    """Training prompts; fewer when the generator has fewer distinct ones."""
    eval_size: int = Field(0, ge=0)
    """Evaluation prompts."""
    seed: int = Field(0, ge=0)
    """Seed of the generator; run.seed decides the order."""

    @property
    def has_evaluation(self) -> bool:
        """Whether there are evaluation prompts."""
        return self.eval_size > 0


class ReasoningGymData(GeneratedData):
    """A reasoning-gym data set (needs the extra ``tasks``)."""

    kind: Literal["reasoning_gym"]
    """Procedural tasks of the reasoning-gym package."""
    dataset: str
    """Name of the data set, such as "products"."""


class BuiltinData(GeneratedData):
    """A task that zerogap ships."""

    kind: Literal["builtin"]
    """Tasks that need no download."""
    name: str
    """Name of the task, such as "multiplication"."""


DataConfig = Annotated[
    JsonlData | ParquetData | ReasoningGymData | BuiltinData, Field(discriminator="kind")
]
