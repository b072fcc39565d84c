"""A tokenizer of the 256 bytes, for tiny models trained from scratch.

Id b < 256 is the byte b, so any text encodes and any ids decode. It is byte-level BPE without merges, built with the
``tokenizers`` library and saved as Hugging Face files, so an exported tiny model loads in transformers.
"""

from zerogap.data.tokenizer import Tokenizer

BOS_TOKEN_ID = 256
EOS_TOKEN_ID = 257
BYTE_VOCAB_SIZE = 259

# transformers loads a Qwen2 folder with Qwen2Tokenizer, which adds this token if it is missing. That would grow the
# vocabulary past the model's head, so the padding token has this name.
_SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|endoftext|>")


def byte_tokenizer() -> Tokenizer:
    """A new tokenizer of 259 ids: the bytes, then BOS, EOS and padding. Prompts start with one BOS."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = _printable_bytes()
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={alphabet[b]: b for b in range(256)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    bos, eos, pad = _SPECIAL_TOKENS
    backend.add_special_tokens(
        [tokenizers.AddedToken(name, normalized=False) for name in _SPECIAL_TOKENS]
    )
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, BOS_TOKEN_ID)]
    )
    hf = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        clean_up_tokenization_spaces=False,
    )
    return Tokenizer(hf)


def _printable_bytes() -> dict[int, str]:
    """GPT-2's table from bytes to printable characters, which byte-level BPE uses."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in table)
    return table | {b: chr(256 + k) for k, b in enumerate(others)}
