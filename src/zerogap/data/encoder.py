"""Encodes questions as prompt ids, in the same way for training, evaluation and generation."""

from collections.abc import Callable, Iterable, Mapping

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
        return self._encode(item, None)

    def with_hint(self, item: PromptItem, change: Callable[[str], str]) -> list[int]:
        """Ids of the prompt with another last user message, for a teacher.

        Args:
            item: with text or messages.
            change: from the user message, as the policy reads it, to the teacher's.

        Raises:
            DataError: as above; or the item is given as ids, or its last message is not a user's text.
        """
        if item.prompt_ids is not None:
            msg = f"prompt {item.item_id} is given as ids, so no hint can be put into its user message; give the question as text or messages"
            raise DataError(msg)
        return self._encode(item, change)

    def _encode(self, item: PromptItem, change: Callable[[str], str] | None) -> list[int]:
        if item.messages is None:
            text = self._config.render(item.question or "")
            text = text if change is None else change(text)
            if not self._config.chat:
                return self._tokenizer.encode(text, add_special=True)
            messages = [*self._system(), {"role": "user", "content": text}]
        else:
            self._check_messages(item.item_id, item.messages)
            messages = [*self._system(), *item.messages]
            if change is not None:
                messages[-1] = _changed(item.item_id, messages[-1], change)
        return self._tokenizer.apply_chat_template(messages, arguments=self._config.chat_arguments)

    def _system(self) -> list[Message]:
        return [{"role": "system", "content": self._config.system}] if self._config.system else []

    def _check_messages(self, item_id: str, messages: tuple[Message, ...]) -> None:
        for key, is_clash in self._clashes(messages).items():
            if is_clash:
                msg = f"prompt {item_id} is a list of messages, but {key} works only with text; remove that setting, or give the question as text"
                raise DataError(msg)

    def _clashes(self, messages: tuple[Message, ...]) -> Mapping[str, bool]:
        has_system = any(m.get("role") == "system" for m in messages)
        return {
            "prompt.chat = false": not self._config.chat,
            "prompt.template": self._config.template != type(self._config)().template,
            "prompt.system, next to a system message of its own,": bool(self._config.system)
            and has_system,
        }


def _changed(item_id: str, message: Message, change: Callable[[str], str]) -> Message:
    if message.get("role") != "user" or not isinstance(message.get("content"), str):
        msg = f"prompt {item_id}: its last message has the role {message.get('role')!r}, so no hint can be put into a user's text; end the messages with the user's, as text"
        raise DataError(msg)
    return {**message, "content": change(message["content"])}


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
