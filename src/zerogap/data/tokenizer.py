"""Text to ids and back, for one model.

In: text, or chat messages. Out: ids that start with exactly one beginning-of-sequence token if the model was trained
with one, for text and chat, training and evaluation. Other rooms pass on the ids. Decoded text is for stop strings,
rewards and people, and is never encoded again.

Nothing here pads, because rows are packed. So the padding id may equal the end-of-sequence id without confusion.

transformers is imported inside functions, since that takes seconds and most callers only need the type.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerogap.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message = Mapping[str, Any]
"""One chat message: ``{"role": "user", "content": "..."}``; other keys are passed to the template."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
)
"""Tokenizer files in a Hugging Face folder; ``save`` copies them byte for byte."""

_VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Tokenizer:
    """A fast Hugging Face tokenizer, reduced to the calls this package needs. Immutable.

    Example:
        ``Tokenizer.load(Path("models/qwen3")).apply_chat_template([{"role": "user", "content": "2+3?"}])``
    """

    def __init__(self, hf: PreTrainedTokenizerFast, *, folder: Path | None = None) -> None:
        if not getattr(hf, "is_fast", False):
            msg = (
                f"the tokenizer {type(hf).__name__} has no fast version, and a slow one cannot be used, because "
                "its ids are not reproducible from a tokenizer.json; convert it and save it with save_pretrained"
            )
            raise DataError(msg)
        self._hf = hf
        self._backend = hf.backend_tokenizer
        self._folder = folder
        self.bos_token_id: int | None = hf.bos_token_id
        """The beginning-of-sequence id, if there is one."""
        self.eos_token_id: int | None = hf.eos_token_id
        """The tokenizer's own end-of-sequence id, if any."""
        self.pad_token_id: int | None = hf.pad_token_id
        """The padding id, only for export; it may equal an end-of-sequence id."""

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a model folder. Reads local files only.

        Raises:
            DataError: the folder has no tokenizer, or transformers cannot read it.
        """
        folder = Path(folder)
        if not any((folder / name).exists() for name in _VOCABULARY_FILES):
            msg = (
                f"{folder} has no tokenizer: none of {', '.join(_VOCABULARY_FILES)} is there; "
                "copy the model's tokenizer files into it, or give a folder that has them"
            )
            raise DataError(msg)
        from transformers import AutoTokenizer

        try:
            hf: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:
            # transformers and tokenizers raise many types, even a bare Exception from Rust.
            msg = f"the tokenizer in {folder} cannot be loaded ({type(error).__name__}: {error}); check that its files are complete and belong to one model"
            raise DataError(msg) from error
        return cls(hf, folder=folder)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest valid id.

        Models pad their head to a round number of rows; ids from here on must never be sampled.
        """
        return max(self._hf.get_vocab().values()) + 1

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn: the tokenizer's own and those in the folder's configs."""
        found = {self.eos_token_id}
        for name in ("generation_config.json", "config.json"):
            found.update(_declared_eos(self._folder / name) if self._folder else ())
        return tuple(sorted(i for i in found if i is not None))

    @cached_property
    def adds_bos(self) -> bool:
        """Whether the model's texts start with the beginning-of-sequence token."""
        ids = self._hf("a").input_ids
        return self.bos_token_id is not None and ids[:1] == [self.bos_token_id]

    @property
    def has_chat_template(self) -> bool:
        """Whether there is a chat template."""
        return bool(self._hf.chat_template)

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of the text, lossless.

        Args:
            text: any string; names of special tokens in it become special tokens.
            add_special: start with exactly one beginning-of-sequence token if the model wants one,
                whether or not the text contains it. An end-of-sequence token is never added.
        """
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return self._with_one_bos(ids) if add_special else ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of the ids, without clean-up of spaces; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode(list(map(int, ids)), skip_special_tokens=skip_special)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as text, rendered by the chat template; for people.

        Args:
            messages: the conversation so far.
            add_generation_prompt: end with the start of the assistant's turn.
            arguments: variables for the template, such as ``tools`` or ``enable_thinking``.

        Raises:
            DataError: there is no template, or it refuses the messages.
        """
        if not self.has_chat_template:
            msg = (
                f"the tokenizer in {self._folder or 'memory'} has no chat template, so messages cannot be rendered; "
                "set prompt.chat = false to send plain text, or put a chat_template.jinja next to tokenizer.json"
            )
            raise DataError(msg)
        import jinja2

        try:
            rendered: Any = self._hf.apply_chat_template(
                [dict(m) for m in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **dict(arguments or {}),
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = [m.get("role") for m in messages]
            msg = (
                f"the chat template refuses messages with roles {roles} and prompt.chat_arguments = {dict(arguments or {})} "
                f"({error}); change them to what the template allows"
            )
            raise DataError(msg) from error
        return rendered

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of the messages, rendered and encoded once, with exactly one leading BOS.

        Some templates contain the BOS, others leave it to the tokenizer; both give the same ids here.
        Arguments and errors as in ``render_chat``.
        """
        text = self.render_chat(
            messages, add_generation_prompt=add_generation_prompt, arguments=arguments
        )
        return self.encode(text, add_special=True)

    def check_prompt_ids(self, ids: Sequence[int]) -> None:
        """Refuse given ids that are not a valid prompt of this model.

        Raises:
            DataError: an invalid id, or not exactly one leading BOS if the model wants one.
        """
        outside = [i for i in ids if not 0 <= i < self.vocab_size]
        if outside:
            msg = f"prompt ids {outside[:5]} are outside the tokenizer's {self.vocab_size} ids; encode with this model's tokenizer"
            raise DataError(msg)
        num_bos = self._num_leading_bos(ids)
        if (self.adds_bos and num_bos != 1) or num_bos > 1:
            msg = (
                f"prompt ids start with {num_bos} beginning-of-sequence tokens (id {self.bos_token_id}), but this model "
                f"was trained with {'exactly one' if self.adds_bos else 'at most one'}; correct the start of the ids"
            )
            raise DataError(msg)

    def check_same_ids(self, other: Tokenizer, *, what: str) -> None:
        """Refuse a tokenizer whose ids mean different tokens.

        Args:
            other: the tokenizer to compare.
            what: its owner, for the message.

        Raises:
            DataError: an id differs, or one of the two lacks it.
        """
        ours, theirs = self._hf.get_vocab(), other._hf.get_vocab()
        if different := sorted(ours.items() ^ theirs.items(), key=lambda entry: entry[1]):
            text, first = different[0]
            msg = (
                f"{what} has a different tokenizer: {len(different)} entries differ, first id {first} ({text!r}). Ids are "
                "passed on unchanged and would mean other text; choose a model with the policy's tokenizer"
            )
            raise DataError(msg)

    def save(self, folder: Path) -> None:
        """Write the tokenizer for transformers; original files are copied byte for byte."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if self._folder is None:
            self._hf.save_pretrained(folder)
            return
        for name in TOKENIZER_FILES:
            source = self._folder / name
            if source.is_dir():
                shutil.copytree(source, folder / name, dirs_exist_ok=True)
            elif source.exists():
                shutil.copyfile(source, folder / name)

    def _num_leading_bos(self, ids: Sequence[int]) -> int:
        return next((k for k, i in enumerate(ids) if i != self.bos_token_id), len(ids))

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        num_bos = self._num_leading_bos(ids)
        wanted = 1 if self.adds_bos else min(num_bos, 1)
        bos = [] if self.bos_token_id is None else [self.bos_token_id]
        return bos * wanted + ids[num_bos:]


def _declared_eos(path: Path) -> tuple[int, ...]:
    """The ``eos_token_id`` of a config file, which may be one id, a list, or absent."""
    if not path.exists():
        return ()
    declared = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    return tuple(declared) if isinstance(declared, list) else (declared,)
