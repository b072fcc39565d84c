import numpy as np
import pytest
from helpers.planted_fault import assert_notices

from zerogap.config.data import PromptConfig
from zerogap.data import AnswerEncoder, PromptEncoder, PromptItem, byte_tokenizer
from zerogap.errors import DataError
from zerogap.rollout import Demonstrations

TOKENIZER = byte_tokenizer()
ITEMS = [
    PromptItem(item_id="i0", question="ab", answer="bb", rejected="a"),
    PromptItem(item_id="i1", question="c", answer="c", rejected="ccc"),
]


def demonstrations(*, compares_answers=False):
    return Demonstrations(
        encode=PromptEncoder(TOKENIZER, PromptConfig(chat=False)),
        encode_answer=AnswerEncoder(TOKENIZER, chat=False, eos_token_ids=(257,)),
        compares_answers=compares_answers,
    )


def texts(rollouts):
    return [TOKENIZER.decode(sample.token_ids, False) for sample in rollouts.samples]


def test_a_prompt_is_one_sample_of_its_reference_answer():
    made = demonstrations()(ITEMS, step=3)
    assert texts(made) == ["<|bos|>abbb<|eos|>", "<|bos|>cc<|eos|>"]
    assert [s.rollout_id for s in made.samples] == ["train-000003-0000/0", "train-000003-0001/0"]
    assert [s.num_loss_tokens for s in made.samples] == [3, 2]
    assert {s.reward for s in made.samples} == {None}
    assert made.items["train-000003-0001"] is ITEMS[1]


def check_rewards_say_which_is_preferred(samples):
    by_reward = {sample.reward: sample.text for sample in samples}
    assert by_reward == {1.0: ITEMS[0].answer, 0.0: ITEMS[0].rejected}


def test_where_answers_are_compared_a_prompt_is_a_pair():
    made = demonstrations(compares_answers=True)(ITEMS, step=3)
    assert [len(group.samples) for group in made.groups] == [2, 2]
    chosen, rejected = made.groups[0].samples
    check_rewards_say_which_is_preferred([chosen, rejected])
    assert (chosen.rollout_id, rejected.rollout_id) == (
        "train-000003-0000/chosen",
        "train-000003-0000/rejected",
    )
    swapped = [chosen.scored(0.0), rejected.scored(1.0)]
    assert_notices("swapped", lambda: check_rewards_say_which_is_preferred(swapped))


def test_prompt_ids_are_those_of_sampling():
    (sample, *_) = demonstrations()(ITEMS, step=0).samples
    prompt_ids = PromptEncoder(TOKENIZER, PromptConfig(chat=False))(ITEMS[0])
    np.testing.assert_array_equal(sample.token_ids[: sample.num_prompt_tokens], prompt_ids)


def test_what_cannot_be_trained_on_is_found_before_the_run():
    without = PromptItem(item_id="none", question="q")
    ended = PromptItem(item_id="ended", question="q", answer="a<|eos|>")
    long = PromptItem(item_id="long", question="q", answer="a" * 20)
    assert demonstrations().check(ITEMS, max_tokens=6) == 6
    with pytest.raises(
        DataError,
        match=r"(?s)3 of 5 .*none has no reference answer.*ended.*contains the special token.*long has 23 tokens",
    ):
        demonstrations().check([*ITEMS, without, ended, long], max_tokens=20)
    only = PromptItem(item_id="i", question="q", answer="a")
    with pytest.raises(DataError, match=r"(?s)1 of 1 .*no rejected answer"):
        demonstrations(compares_answers=True).check([only], max_tokens=20)
    with pytest.raises(DataError, match=r"2 of 2 .*at most 5 tokens"):
        demonstrations(compares_answers=True).check(ITEMS, max_tokens=5)
