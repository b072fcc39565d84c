"""[data] and [prompt]: the questions for training and evaluation, and how they become prompts. [data] is a union on ``kind``."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.section import Section, TomlValue


class FileData(Section):
    """Prompts from a JSON-lines file, one object per line, or from a parquet file (needs the extra ``parquet``)."""

    kind: Literal["jsonl", "parquet"]
    """Format of the file."""
    path: str
    """Training prompts; relative to the working directory."""
    prompt_field: str = "prompt"
    """Field with the question, or a list of chat messages."""
    answer_field: str | None = None
    """Field with the reference answer: for rewards that compare, and for training with loss.kind = "sft" or "dpo".
    none: prompts have no answer."""
    rejected_field: str | None = None
    """Field with a worse answer, for loss.kind = "dpo"."""
    shuffle: bool = True
    """Use a new order in each epoch, fixed by run.seed; false keeps the order of the file."""
    eval_path: str | None = None
    """File with evaluation prompts, in the same format."""
    eval_size: int = Field(0, ge=0)
    """Without eval_path: hold out this many prompts, the last in path, for evaluation."""

    def problems(self) -> Iterator[str]:
        """Two sources of evaluation prompts."""
        if self.eval_path is not None and self.eval_size:
            yield f"eval_size = {self.eval_size}, eval_path = {self.eval_path!r}: evaluation prompts come from only one of them; remove the other (evaluate.max_prompts limits how many are used)"

    @property
    def has_evaluation(self) -> bool:
        """Whether there are evaluation prompts."""
        return self.eval_path is not None or self.eval_size > 0


class GeneratedData(Section):
    """Generated prompts; training and evaluation prompts are disjoint."""

    kind: Literal["reasoning_gym", "builtin"]
    """Source of the prompts."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Arguments of the generator."""
    size: int = Field(1000, ge=1)
    """Number of training prompts; fewer if the generator has fewer distinct ones."""
    eval_size: int = Field(0, ge=0)
    """Number of evaluation prompts."""
    seed: int = Field(0, ge=0)
    """Seed of the generator; run.seed decides the order."""

    @property
    def has_evaluation(self) -> bool:
        """Whether there are evaluation prompts."""
        return self.eval_size > 0


class ReasoningGymData(GeneratedData):
    """A data set of the reasoning-gym package (needs the extra ``tasks``)."""

    kind: Literal["reasoning_gym"]
    """A data set of the reasoning-gym package."""
    dataset: str
    """Name of the data set, such as "products"."""


class BuiltinData(GeneratedData):
    """A task that zerogap ships."""

    kind: Literal["builtin"]
    """A task that needs no download."""
    name: str
    """Name of the task, such as "multiplication"."""


DataConfig = Annotated[FileData | ReasoningGymData | BuiltinData, Field(discriminator="kind")]


_SLOT = "{question}"


class PromptConfig(Section):
    """Inserts the question into ``template``, then applies the chat template."""

    system: str | None = None
    """System message; none: the chat template decides."""
    template: str = _SLOT
    """User message; ``{question}`` is replaced by the question. All other characters stay, braces included."""
    chat: bool = True
    """Apply the model's chat template; false sends the text as it is, for base models."""
    chat_arguments: dict[str, TomlValue] = Field(default_factory=dict)
    """Variables for the chat template, such as ``enable_thinking = false`` for Qwen3."""

    def render(self, question: str) -> str:
        """The user message for one question."""
        return self.template.replace(_SLOT, question)

    def problems(self) -> Iterator[str]:
        """A template without the question; chat settings without a chat template."""
        if self.template.count(_SLOT) != 1:
            yield f"template = {self.template!r}: the question must appear in it exactly once; write {_SLOT} where the question goes"
        if not self.chat:
            for key in ("system", "chat_arguments"):
                if given := getattr(self, key):
                    yield f"{key} = {given!r}: it has no effect without a chat template; set prompt.chat = true, or write the text into prompt.template"
