"""[prompt]: how a question becomes a prompt."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.config.section import Section, TomlValue

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
