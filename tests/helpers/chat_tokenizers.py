"""The byte tokenizer with a chat template, and with or without a BOS of its own."""

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from zerogap.data import Tokenizer, byte_tokenizer

LLAMA3_LIKE_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def chat_tokenizer(template: str, *, adds_bos: bool = True) -> Tokenizer:
    hf = byte_tokenizer()._hf
    if not adds_bos:
        hf.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    hf.chat_template = template
    return Tokenizer(hf)


def merging_tokenizer() -> Tokenizer:
    """Has the pieces h, e, l, o, he, llo and hello: one text, several strings of ids."""
    pieces = ["h", "e", "l", "o", "he", "lo", "llo", "hello"]
    merges = [("h", "e"), ("l", "o"), ("l", "lo"), ("he", "llo")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges)
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
