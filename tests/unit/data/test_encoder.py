import pytest
from helpers.chat_tokenizers import LLAMA3_LIKE_TEMPLATE, chat_tokenizer

from zerogap.config.data import PromptConfig
from zerogap.data import PromptEncoder, PromptItem, byte_tokenizer, check_prompt_lengths
from zerogap.errors import DataError

CHAT = chat_tokenizer(LLAMA3_LIKE_TEMPLATE)
QUESTION = PromptItem(item_id="a", question="2 {x}?")


def text(ids):
    return CHAT.decode(ids, False)


def test_a_question_goes_through_the_template_into_the_users_turn():
    encode = PromptEncoder(CHAT, PromptConfig(system="S", template="Q: {question} A:"))
    assert text(encode(QUESTION)) == "<|bos|>[system]S[end][user]Q: 2 {x}? A:[end][assistant]"


def test_without_chat_the_template_is_all():
    encode = PromptEncoder(byte_tokenizer(), PromptConfig(chat=False, template="{question}="))
    assert text(encode(QUESTION)) == "<|bos|>2 {x}?="


def test_messages_are_rendered_as_they_are():
    messages = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    item = PromptItem(item_id="a", messages=messages)
    encode = PromptEncoder(CHAT, PromptConfig(system="S"))
    assert text(encode(item)) == "<|bos|>[system]S[end][user]a[end][assistant]b[end][assistant]"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"chat": False}, "prompt.chat = false"),
        ({"template": "Q {question}"}, "prompt.template"),
        ({"system": "S"}, "prompt.system"),
    ],
)
def test_a_setting_that_messages_cannot_obey_is_refused(settings, key):
    messages = ({"role": "system", "content": "own"}, {"role": "user", "content": "a"})
    with pytest.raises(DataError, match=key):
        PromptEncoder(CHAT, PromptConfig(**settings))(PromptItem(item_id="a", messages=messages))


def test_an_item_has_one_form():
    for forms in ({}, {"question": "a", "prompt_ids": (1,)}, {"question": ""}):
        with pytest.raises(DataError, match="exactly one"):
            PromptItem(item_id="a", **forms)


def test_prompts_that_do_not_fit_are_found_before_the_run():
    items = [PromptItem(item_id=str(k), question="a" * k) for k in range(1, 20)]
    encode = PromptEncoder(byte_tokenizer(), PromptConfig(chat=False))
    check_prompt_lengths(items, encode, max_prompt_tokens=20)
    with pytest.raises(DataError, match=r"9 of 19 prompts do not fit: 11 \(12 tokens\)"):
        check_prompt_lengths(items, encode, max_prompt_tokens=11)


def test_two_files_may_use_one_id():
    items = [PromptItem(item_id="d-1", question=q) for q in ("a" * 20, "a")]
    encode = PromptEncoder(byte_tokenizer(), PromptConfig(chat=False))
    with pytest.raises(DataError, match="1 of 2 prompts do not fit"):
        check_prompt_lengths(items, encode, max_prompt_tokens=11)
