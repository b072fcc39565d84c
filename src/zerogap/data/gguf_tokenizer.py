"""The tokenizer inside a GGUF file, as Hugging Face files.

In: the metadata of a GGUF file with a byte-level BPE vocabulary. Out: tokenizer.json, tokenizer_config.json (with the
chat template), special_tokens_map.json and generation_config.json, with the ids of the model's original tokenizer.

The file does not contain the pre-tokenizer; ``tokenizer.ggml.pre`` only names it. The expressions below come from the
original tokenizer.json files (SmolLM2, Llama 3, Qwen2) and are those of llama.cpp's ``llama-vocab.cpp``. An unknown
name is refused, because a wrong expression silently gives wrong ids.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers import decoders as token_decoders
from tokenizers import models as token_models

from zerogap.errors import DataError
from zerogap.gguf_file import GgufFile

_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _by_digit_then_gpt2() -> pre_tokenizers.PreTokenizer:
    """Single digits, everything else by GPT-2's expression."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def _by_words(max_digits: int) -> pre_tokenizers.PreTokenizer:
    """Contractions, words, runs of at most ``max_digits`` digits, punctuation, line ends, spaces."""
    digits = r"\p{N}" if max_digits == 1 else rf"\p{{N}}{{1,{max_digits}}}"
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(words), "isolated"), _BYTE_LEVEL])


@dataclass(frozen=True)
class _Cut:
    """The pre-tokenizer behind a name in ``tokenizer.ggml.pre``."""

    build: Callable[[], pre_tokenizers.PreTokenizer]
    normalizes_nfc: bool = False
    ignores_merges: bool = False
    """Whether a piece that is in the vocabulary becomes one token, without merges."""
    adds_bos: bool = False
    """Default if the file does not say."""


_CUTS = {
    "smollm": _Cut(_by_digit_then_gpt2),
    "llama-bpe": _Cut(lambda: _by_words(3), ignores_merges=True, adds_bos=True),
    "qwen2": _Cut(lambda: _by_words(1), normalizes_nfc=True),
}
_SPECIAL_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def write_tokenizer_files(gguf_path: Path, folder: Path) -> None:
    """Write the vocabulary of a GGUF file as Hugging Face tokenizer files into ``folder``.

    Each file is complete or absent, and tokenizer.json is written last: if it exists, so do the others, even after a kill.

    Args:
        gguf_path: a file with byte-level BPE and the pre-tokenizer ``smollm``, ``llama-bpe`` or ``qwen2``.
        folder: created if needed; existing files are replaced.

    Raises:
        ModelError: the file cannot be read as GGUF.
        DataError: it has another kind of vocabulary.
    """
    metadata = _read_vocabulary(Path(gguf_path))
    _check_kind(metadata, Path(gguf_path))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as name:
        building = Path(name)
        _write_json(building / "tokenizer_config.json", _tokenizer_config(metadata))
        _write_json(building / "special_tokens_map.json", _special_tokens(metadata))
        _write_json(building / "generation_config.json", _generation_config(metadata))
        _build_tokenizer(metadata).save(str(building / "tokenizer.json"))
        for file in sorted(building.iterdir(), key=lambda path: path.name == "tokenizer.json"):
            file.replace(folder / file.name)


def _read_vocabulary(path: Path) -> dict[str, Any]:
    """``tokenizer.ggml.*`` without the prefix, and ``chat_template``, ``context_length`` and ``end_token_ids``."""
    file = GgufFile.open(path)
    prefix = "tokenizer.ggml."
    metadata = {
        key.removeprefix(prefix): file.value(key) for key in file.keys() if key.startswith(prefix)
    }
    metadata["end_token_ids"] = list(file.end_token_ids)
    metadata["chat_template"] = file.value("tokenizer.chat_template")
    metadata["context_length"] = file.value(f"{file.value('general.architecture')}.context_length")
    return metadata


def _check_kind(metadata: Mapping[str, Any], path: Path) -> None:
    if metadata.get("model") != "gpt2" or "merges" not in metadata:
        msg = (
            f"{path} has a tokenizer of kind {metadata.get('model')!r}, but only byte-level BPE ('gpt2', with merges) can "
            "be rebuilt; put the model's own tokenizer.json in a folder and use that as the tokenizer"
        )
        raise DataError(msg)
    if metadata.get("pre") not in _CUTS:
        msg = (
            f"{path} has tokenizer.ggml.pre = {metadata.get('pre')!r}, which is not one of the supported "
            f"{sorted(_CUTS)}; put the model's own tokenizer.json in a folder and use that as the tokenizer"
        )
        raise DataError(msg)


def _build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    cut = _CUTS[metadata["pre"]]
    tokens = metadata["tokens"]
    kinds = metadata.get("token_type") or [gguf.TokenType.NORMAL] * len(tokens)
    # Unused entries only pad the head to a round number of rows; they must never be encoded or sampled.
    vocab = {
        token: token_id
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind != gguf.TokenType.UNUSED
    }
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["merges"]]
    tokenizer = Tokenizer(token_models.BPE(vocab, merges, ignore_merges=cut.ignores_merges))
    if cut.normalizes_nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = cut.build()
    tokenizer.decoder = token_decoders.ByteLevel()
    _add_whole_tokens(tokenizer, tokens, kinds)
    post_processor = _post_processor(metadata, cut)
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Add the tokens that are never split: special tokens, and words like ``<think>``."""
    tokenizer.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == gguf.TokenType.CONTROL)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED)
        ]
    )


def _post_processor(metadata: Mapping[str, Any], cut: _Cut) -> processors.TemplateProcessing | None:
    """What adds the tokens that the model expects around a text; None if it expects none."""
    ends = {
        "bos": metadata.get("add_bos_token", cut.adds_bos),
        "eos": metadata.get("add_eos_token", False),
    }
    ids = {end: metadata.get(f"{end}_token_id") for end, is_added in ends.items() if is_added}
    added = {end: metadata["tokens"][i] for end, i in ids.items() if i is not None}
    if not added:
        return None
    before = [added["bos"]] if "bos" in added else []
    after = [added["eos"]] if "eos" in added else []
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[
            *before,
            "$A",
            *after,
            *(f"{token}:1" for token in before),
            "$B:1",
            *(f"{token}:1" for token in after),
        ],
        special_tokens=[(token, ids[end]) for end, token in added.items()],
    )


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    ids = {name: metadata.get(key) for name, key in _SPECIAL_IDS.items()}
    return {name: metadata["tokens"][i] for name, i in ids.items() if i is not None}


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    config = {
        # Every version of transformers uses tokenizer.json unchanged with this class.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata["context_length"],
        "chat_template": metadata["chat_template"],
        **_special_tokens(metadata),
    }
    return {key: value for key, value in config.items() if value is not None}


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ends = metadata["end_token_ids"]
    config = {
        "bos_token_id": metadata.get("bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": metadata.get("padding_token_id"),
    }
    return {key: value for key, value in config.items() if value is not None}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
