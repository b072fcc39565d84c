"""Tokenizer, chat templates and prompts: text becomes ids here, once, and nowhere else.

In: a tokenizer folder, the [data] and [prompt] sections. Out: ``PromptItem`` objects and token ids. transformers is
imported on first use, not with the package.
"""

from zerogap.data.answer_encoder import AnswerEncoder
from zerogap.data.byte_tokenizer import byte_tokenizer
from zerogap.data.datasets import PromptSets, build_prompt_sets
from zerogap.data.encoder import PromptEncoder, check_prompt_lengths
from zerogap.data.gguf_tokenizer import write_tokenizer_files
from zerogap.data.items import PromptItem, TaskScore
from zerogap.data.reencode import Reencoding, reencode
from zerogap.data.stream import PromptStream
from zerogap.data.tokenizer import TOKENIZER_FILES, Message, Tokenizer

__all__ = [
    "TOKENIZER_FILES",
    "AnswerEncoder",
    "Message",
    "PromptEncoder",
    "PromptItem",
    "PromptSets",
    "PromptStream",
    "Reencoding",
    "TaskScore",
    "Tokenizer",
    "build_prompt_sets",
    "byte_tokenizer",
    "check_prompt_lengths",
    "reencode",
    "write_tokenizer_files",
]
