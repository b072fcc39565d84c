"""[prompt]: how a question becomes the policy's prompt."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.config.section import Section, TomlValue

_SLOT = "{question}"


class PromptConfig(Section):
    """The question is put into ``template``, then into the model's chat format."""

    system: str | None = None
    """System message; none leaves it to the model's chat template."""
    template: str = _SLOT
    """User message; ``{question}`` stands for the question, every other character for itself."""
    chat: bool = True
    """Render with the model's chat template; false gives the template's text itself to a base model."""
    chat_arguments: dict[str, TomlValue] = Field(default_factory=dict)
    """Variables for the chat template, such as ``enable_thinking = false`` for Qwen3."""

    def render(self, question: str) -> str:
        """The user message for one question."""
        return self.template.replace(_SLOT, question)

    def problems(self) -> Iterator[str]:
        """A template without the question; chat settings without a chat."""
        if self.template.count(_SLOT) != 1:
            yield f"template = {self.template!r}: every prompt would be the same, or repeat its question; write {_SLOT} once, where the question goes"
        if not self.chat:
            for key in ("system", "chat_arguments"):
                if given := getattr(self, key):
                    yield f"{key} = {given!r}: without a chat template nothing uses it; set prompt.chat = true, or write the text into prompt.template"
