"""Encodes questions as prompt ids, in the same way for training, evaluation and generation."""

from collections.abc import Iterable, Mapping

from zerogap.config.data import PromptConfig
from zerogap.data.items import PromptItem
from zerogap.data.tokenizer import Message, Tokenizer
from zerogap.errors import DataError

_NUM_SHOWN = 5


class PromptEncoder:
    """Encodes prompt items: template, then chat template (if on), then tokenizer."""

    def __init__(self, tokenizer: Tokenizer, config: PromptConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config

    def __call__(self, item: PromptItem) -> list[int]:
        """Ids of the prompt, with exactly one leading BOS if the model wants one.

        Raises:
            DataError: the item does not fit the tokenizer or the prompt settings.
        """
        if item.prompt_ids is not None:
            self._tokenizer.check_prompt_ids(item.prompt_ids)
            return list(item.prompt_ids)
        if item.messages is None and not self._config.chat:
            return self._tokenizer.encode(
                self._config.render(item.question or ""), add_special=True
            )
        messages = self._messages(item)
        return self._tokenizer.apply_chat_template(messages, arguments=self._config.chat_arguments)

    def _messages(self, item: PromptItem) -> list[Message]:
        system = [{"role": "system", "content": self._config.system}] if self._config.system else []
        if item.messages is None:
            return [*system, {"role": "user", "content": self._config.render(item.question or "")}]
        for key, is_clash in self._clashes(item.messages).items():
            if is_clash:
                msg = f"prompt {item.item_id} is a list of messages, but {key} works only with text; remove that setting, or give the question as text"
                raise DataError(msg)
        return [*system, *item.messages]

    def _clashes(self, messages: tuple[Message, ...]) -> Mapping[str, bool]:
        has_system = any(m.get("role") == "system" for m in messages)
        return {
            "prompt.chat = false": not self._config.chat,
            "prompt.template": self._config.template != type(self._config)().template,
            "prompt.system, next to a system message of its own,": bool(self._config.system)
            and has_system,
        }


def check_prompt_lengths(
    items: Iterable[PromptItem], encode: PromptEncoder, *, max_prompt_tokens: int
) -> None:
    """Encode every prompt before a run starts, so that no step fails on one.

    Args:
        items: all prompts of the run.
        encode: the run's encoder.
        max_prompt_tokens: context length minus ``max_new_tokens``.

    Raises:
        DataError: prompts are too long (one message names several), or cannot be encoded.
    """
    lengths = [(item.item_id, len(encode(item))) for item in items]
    too_long = [f"{name} ({n} tokens)" for name, n in lengths if n > max_prompt_tokens]
    if too_long:
        shown = ", ".join(too_long[:_NUM_SHOWN]) + (", ..." if len(too_long) > _NUM_SHOWN else "")
        msg = (
            f"{len(too_long)} of {len(lengths)} prompts do not fit: {shown}; at most {max_prompt_tokens} tokens fit beside "
            "the completion; remove them, shorten prompt.template, or lower rollout.sampling.max_new_tokens"
        )
        raise DataError(msg)
