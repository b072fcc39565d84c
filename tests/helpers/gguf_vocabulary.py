"""Byte-level BPE tokenizers trained in place, and their vocabulary as llama.cpp's GGUF metadata."""

import json
from pathlib import Path

import gguf
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from helpers.gguf_files import write_vocabulary_gguf

TEXTS = (
    "Hello  world, it's 123 + 45 = 168!",
    "a  5 and   17\t\t3\n\n  x",
    "don't I'LL we've  CAN'T",
    "    def f(x):\n        return x**2  # 12\r\n",
    "caf\u00e9 cafe\u0301 na\u00efve \u65e5\u672c\u8a9e \U0001f642 \u0663\u0664",
    "<|start|>user\nhi<|end|> <think>so</think>",
    "...!!??  --\n\n\n",
    "",
)
SPECIAL = ("<|endoftext|>", "<|start|>", "<|end|>")
WORDS = ("<think>", "</think>")
_SPACES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
CUTS = {
    # As the tokenizer.json files of SmolLM2, Llama 3 and Qwen2 have them.
    "smollm": [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False, use_regex=True)],
    "llama-bpe": [
        pre_tokenizers.Split(Regex(_START + r"|\p{N}{1,3}" + _SPACES), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
    "qwen2": [
        pre_tokenizers.Split(Regex(_START + r"|\p{N}" + _SPACES), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ],
}


def trained_tokenizer(pre: str) -> tokenizers.Tokenizer:
    """A tokenizer of a few hundred ids that cuts text as ``pre`` says; special tokens first, words last."""
    original = tokenizers.Tokenizer(models.BPE())
    if pre == "qwen2":
        original.normalizer = normalizers.NFC()
    original.pre_tokenizer = pre_tokenizers.Sequence(CUTS[pre])
    original.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[*SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    original.train_from_iterator([*TEXTS] * 3, trainer)
    original.add_tokens([tokenizers.AddedToken(word, normalized=False) for word in WORDS])
    return original


def save_as_gguf(path: Path, original: tokenizers.Tokenizer, pre: str | None, **changes) -> Path:
    """Its vocabulary and four padding entries; ``changes`` are metadata keys, None leaves one out."""
    content = json.loads(original.to_str())
    tokens = [original.id_to_token(i) for i in range(original.get_vocab_size())]
    kinds = [
        int(
            gguf.TokenType.CONTROL
            if token in SPECIAL
            else gguf.TokenType.USER_DEFINED
            if token in WORDS
            else gguf.TokenType.NORMAL
        )
        for token in tokens
    ]
    padding = [f"[PAD{i}]" for i in range(4)]
    metadata = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens + padding,
        "token_type": kinds + [int(gguf.TokenType.UNUSED)] * len(padding),
        "merges": [" ".join(merge) for merge in content["model"]["merges"]],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 2,
        "add_bos_token": False,
        "chat_template": "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>\n{% endfor %}",
    }
    given = {key: value for key, value in (metadata | changes).items() if value is not None}
    return write_vocabulary_gguf(path, **given)
