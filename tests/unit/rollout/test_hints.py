"""What the teacher reads: the answer, or another completion that succeeded, in the policy's own prompt format."""

from dataclasses import replace

import pytest
from helpers.samples import completed_sample

from zerogap.algorithms import HintConfig
from zerogap.config.data import PromptConfig
from zerogap.data import PromptEncoder, PromptItem, byte_tokenizer
from zerogap.errors import DataError
from zerogap.rollout import Hints, Rollouts
from zerogap.types import Group, Outcome

TOKENIZER = byte_tokenizer()
ENCODE = PromptEncoder(TOKENIZER, PromptConfig(chat=False, template="Q: {question}"))
ITEM = PromptItem(item_id="i", question="1+1?", answer="two")
TEMPLATE = "{question} [{hint}]"


def hints(kind, *, max_tokens=100, **config):
    made = HintConfig(kind=kind, **{"template": TEMPLATE, **config})
    return Hints(config=made, encode=ENCODE.with_hint, max_tokens=max_tokens)


def rollouts(rewards, **changes):
    samples = [
        replace(completed_sample(), group_id="g", rollout_id=f"g/{i}", text=f"text {i}").scored(r)
        for i, r in enumerate(rewards)
    ]
    for place, outcome in changes.items():
        place = int(place.removeprefix("at"))
        samples[place] = samples[place].failed(outcome, "")
    group = Group(group_id="g", samples=tuple(samples))
    return Rollouts(groups=(group,), items={"g": ITEM})


def reads(hinted):
    found = [s.teacher_prompt_ids for s in hinted.rollouts.samples]
    return [None if ids is None else TOKENIZER.decode(ids) for ids in found]


def test_an_answer_is_put_into_the_policys_prompt():
    assert reads(hints("answer")(rollouts([0.0, 1.0]))) == ["Q: 1+1? [two]"] * 2


def test_a_success_is_the_first_of_another_rollout():
    assert reads(hints("success")(rollouts([0.0, 1.0, 0.5, 1.0]))) == [
        "Q: 1+1? [text 1]",
        "Q: 1+1? [text 3]",
        "Q: 1+1? [text 1]",
        "Q: 1+1? [text 1]",
    ]


def test_without_another_success_a_sample_has_no_hint():
    found = hints("success")(rollouts([0.0, 1.0]))
    assert reads(found) == ["Q: 1+1? [text 1]", None]
    assert (found.num_trainable, found.num_hinted, found.num_too_long) == (2, 1, 0)
    assert reads(hints("success", min_reward=0.5)(rollouts([0.4, 0.5]))) == ["Q: 1+1? [text 1]", None]  # fmt: skip
    assert reads(hints("success")(rollouts([0.4, 0.5]))) == [None, None]


def test_the_samples_of_one_rollout_do_not_teach_each_other():
    first, second = rollouts([1.0, 1.0]).samples
    group = Group(group_id="g", samples=(first, replace(second, rollout_id=first.rollout_id)))
    assert reads(hints("success")(Rollouts(groups=(group,), items={"g": ITEM}))) == [None, None]


def test_a_failed_sample_neither_gets_nor_gives_a_hint():
    found = hints("success")(rollouts([1.0, 1.0, 0.0], at0=Outcome.ABORTED))
    assert reads(found) == [None, None, "Q: 1+1? [text 1]"]
    assert (found.num_trainable, found.num_hinted) == (2, 1)


def test_a_hint_that_does_not_fit_is_counted_and_never_cut():
    num_completion = len(completed_sample()) - completed_sample().num_prompt_tokens
    length = len(TOKENIZER.encode("Q: 1+1? [two]", add_special=True)) + num_completion
    assert hints("answer", max_tokens=length)(rollouts([0.0, 1.0])).num_too_long == 0
    found = hints("answer", max_tokens=length - 1)(rollouts([0.0, 1.0]))
    assert (reads(found), found.num_too_long, found.num_hinted) == ([None, None], 2, 0)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (PromptItem(item_id="i", question="x"), "i has no reference answer"),
        (PromptItem(item_id="i", question="x" * 200, answer="y"), "i has 2.. tokens"),
    ],
)
def test_prompts_without_a_possible_hint_are_found_before_the_run(item, why):
    hints("answer").check([ITEM], max_new_tokens=8)
    with pytest.raises(DataError, match=f"1 of 2 prompts cannot have a hint.*{why}.*; remove them"):
        hints("answer").check([ITEM, item], max_new_tokens=8)


def test_a_hint_may_hold_the_templates_own_words():
    config = HintConfig(kind="answer", template="{question} - {hint}")
    assert config.render("a {hint}", "b {question}") == "a {hint} - b {question}"
    other = HintConfig(kind="answer", template="{hint} - {question}")
    assert other.render("a {hint}", "b {question}") == "b {question} - a {hint}"


@pytest.mark.parametrize("template", ["{question}", "{hint}", "{hint}{question}{hint}"])
def test_a_template_names_question_and_hint_once(template):
    with pytest.raises(ValueError, match="must appear in it exactly once"):
        HintConfig(kind="answer", template=template)


MESSAGES = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})  # fmt: skip


class ChatTokenizer:
    """Renders a chat as text and encodes nothing."""

    def apply_chat_template(self, messages, *, arguments):
        return [f"{m['role']}: {m['content']}" for m in messages]


def test_of_a_conversation_the_last_user_message_changes():
    encode = PromptEncoder(ChatTokenizer(), PromptConfig(system="s"))
    found = encode.with_hint(PromptItem(item_id="i", messages=MESSAGES), lambda text: f"<{text}>")
    assert found == ["system: s", "user: a", "assistant: b", "user: <c>"]
    question = PromptItem(item_id="i", question="q")
    assert encode.with_hint(question, lambda text: f"<{text}>") == ["system: s", "user: <q>"]
    assert encode(question) == ["system: s", "user: q"]


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (PromptItem(item_id="i", prompt_ids=(1, 2)), "given as ids"),
        (PromptItem(item_id="i", messages=MESSAGES[:2]), "role 'assistant'"),
        (PromptItem(item_id="i", messages=({"role": "user", "content": [{"type": "text"}]},)), "as text"),
    ],
)  # fmt: skip
def test_a_prompt_that_can_have_no_hint_says_why(item, why):
    encode = PromptEncoder(ChatTokenizer(), PromptConfig())
    with pytest.raises(DataError, match=why):
        encode.with_hint(item, lambda text: text)


def test_a_groups_hint_is_encoded_once():
    encoded = []

    def encode(item, change):
        encoded.append(change("?"))
        return ENCODE.with_hint(item, change)

    rewards = [0.0, 1.0, 0.0, 1.0, 0.0]
    for kind, expected in (("answer", ["? [two]"]), ("success", ["? [text 1]", "? [text 3]"])):
        encoded.clear()
        replace(hints(kind), encode=encode)(rollouts(rewards))
        assert encoded == expected
