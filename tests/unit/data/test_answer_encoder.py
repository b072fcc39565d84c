import pytest
import tokenizers
from helpers.chat_tokenizers import LLAMA3_LIKE_TEMPLATE, chat_tokenizer, merging_tokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from zerogap.config.data import PromptConfig
from zerogap.data import AnswerEncoder, PromptEncoder, PromptItem, Tokenizer, byte_tokenizer
from zerogap.errors import DataError

BYTES = byte_tokenizer()
EOS, PAD = 257, 258
ENDING_TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
"""Ends a turn with another token than the tokenizer's own end, and writes a line break after it."""


def encoder(tokenizer=BYTES, *, chat=False, eos_token_ids=(EOS,)):
    return AnswerEncoder(tokenizer, chat=chat, eos_token_ids=eos_token_ids)


def test_an_answer_continues_its_prompt_and_ends():
    prompt_ids = PromptEncoder(BYTES, PromptConfig(chat=False))(
        PromptItem(item_id="a", question="hc")
    )
    answer_ids = encoder()(prompt_ids, "cc\n")
    assert answer_ids == [*b"cc\n", EOS]
    assert [*prompt_ids, *answer_ids].count(256) == 1


def test_a_chat_answer_ends_as_the_template_ends_the_assistants_turn():
    tokenizer = chat_tokenizer(ENDING_TEMPLATE)
    encode = encoder(tokenizer, chat=True, eos_token_ids=(EOS, PAD))
    prompt_ids = PromptEncoder(tokenizer, PromptConfig())(PromptItem(item_id="a", question="q"))
    whole = [*prompt_ids, *encode(prompt_ids, "yes")]
    conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}]
    rendered = tokenizer.apply_chat_template(conversation, add_generation_prompt=False)
    assert whole == rendered[:-1], "all but the line break after the end"
    assert encoder(tokenizer, chat=False, eos_token_ids=(EOS, PAD)).end_token_id == EOS


def test_a_template_without_an_end_leaves_it_to_the_tokenizer():
    assert encoder(chat_tokenizer(LLAMA3_LIKE_TEMPLATE), chat=True).end_token_id == EOS


@pytest.mark.parametrize(
    ("tokenizer", "eos_token_ids"), [(BYTES, (3, 4)), (merging_tokenizer(), (3, 4))]
)
def test_an_end_at_which_the_engine_does_not_stop_is_refused(tokenizer, eos_token_ids):
    with pytest.raises(
        DataError, match=r"the engine stops only at \[3, 4\].*generation_config.json"
    ):
        encoder(tokenizer, eos_token_ids=eos_token_ids)


@pytest.mark.parametrize("answer", ["a<|eos|>", "<|bos|>a", "a<|eos|>b"])
def test_an_answer_that_spells_a_special_token_is_refused(answer):
    with pytest.raises(DataError, match=r"contains the special token.*remove it"):
        encoder()([256, 97], answer)


def test_ids_at_the_seam_are_never_merged_into_the_prompt():
    tokenizer = merging_tokenizer()
    tokenizer = Tokenizer(with_end(tokenizer))
    encode = encoder(tokenizer, eos_token_ids=(8,))
    he, llo = tokenizer.encode("he"), tokenizer.encode("llo")
    assert tokenizer.encode("hello") == [7], "one piece, were it one text"
    assert encode(he, "llo") == [*llo, 8]


def test_an_answer_has_no_space_that_its_tokenizer_puts_before_a_text():
    tokenizer = Tokenizer(spacing_tokenizer())
    prompt_ids = tokenizer.encode("ab")
    assert tokenizer.decode(tokenizer.encode("b"), False) == "b"
    answer_ids = encoder(tokenizer, eos_token_ids=(4,))(prompt_ids, "ba")
    assert tokenizer.decode([*prompt_ids, *answer_ids[:-1]], False) == "abba"


def with_end(tokenizer):
    hf = tokenizer._hf
    hf.add_special_tokens({"eos_token": "<end>"})
    return hf


def spacing_tokenizer():
    """Like SentencePiece: adds a space at the start of a text."""
    pieces = {"\u2581": 0, "a": 1, "b": 2, "?": 3}
    backend = tokenizers.Tokenizer(models.BPE(vocab=pieces, merges=[], unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    hf = PreTrainedTokenizerFast(tokenizer_object=backend)
    hf.add_special_tokens({"eos_token": "<end>"})
    return hf
