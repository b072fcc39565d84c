"""Functions written for TRL and verl get what those would give them."""

import pytest
from helpers import reward_functions
from helpers.samples import completed_sample

from zerogap.data import PromptItem
from zerogap.errors import RewardFailed
from zerogap.rollout import RewardRequest, RewardResult
from zerogap.rollout.reward_source import RewardSource

ROW = {"solution": "12", "level": 3}


def item(**changes):
    fields = {"item_id": "q", "question": "3 * 4?", "answer": "12", "metadata": {"level": 3}}
    return PromptItem(**{**fields, **changes})


def rewarded(function, *completions, of=None, **options):
    """Results and what the function saw."""
    reward_functions.SEEN.clear()
    source = RewardSource(function=f"helpers.reward_functions:{function}", **options)
    requests = [
        RewardRequest(completion=c, item=of or item(), sample=completed_sample(c))
        for c in completions
    ]
    return source.load()(requests), list(reward_functions.SEEN)


def values(results):
    return [result.value for result in results]


@pytest.mark.parametrize(
    ("function", "convention", "takes"),
    [
        ("length", "zerogap's (completion, item, sample)", "completion"),
        ("grader", "zerogap's (completion, item, sample)", "completion"),
        ("shortest", "zerogap's (completions, item, samples)", "group"),
        ("trl", "TRL's (completions, **columns)", "group"),
        ("trl_with_column", "TRL's (completions, **columns)", "group"),
        ("verl", "verl's (data_source, solution_str, ground_truth, extra_info=None)", "completion"),
        ("verl_without_score", "verl's (data_source, solution_str, ground_truth, extra_info=None)", "completion"),
    ],
)  # fmt: skip
def test_the_names_of_the_parameters_say_how_a_function_is_called(function, convention, takes):
    found = RewardSource(function=f"helpers.reward_functions:{function}").load().convention
    assert (str(found), found.takes) == (convention, takes)


def test_a_function_of_trl_gets_lists_by_name_once_for_a_prompt():
    results, (seen,) = rewarded("trl", "12", "a13", answer_name="solution")
    assert values(results) == [2, 3]
    ids = seen.pop("completion_ids")
    sample = completed_sample("a13")
    assert ids[1] == sample.token_ids[sample.num_prompt_tokens :].tolist()
    assert seen == {
        "completions": ["12", "a13"],
        "prompts": ["3 * 4?"] * 2,
        "answer": ["12"] * 2,
        "solution": ["12"] * 2,
        "level": [3, 3],
    }


def test_a_nested_answer_is_found_under_the_last_part_of_its_name():
    results, _ = rewarded("trl_with_column", "it is 12", answer_name="info.solution")
    assert values(results) == [1]


def test_a_function_of_trl_gets_only_what_it_names():
    results, _ = rewarded("trl_with_column", "it is 12", "13", answer_name="solution")
    assert values(results) == [1, 0]


def test_a_conversation_reaches_a_function_of_trl_as_messages():
    messages = ({"role": "user", "content": "3 * 4?"},)
    talk = item(question=None, messages=messages)
    results, (seen,) = rewarded("trl", "12", of=talk)
    assert values(results) == [2]
    assert seen["completions"] == [[{"role": "assistant", "content": "12"}]]
    assert seen["prompts"] == [list(messages)]


def test_a_none_of_trl_is_a_failure_of_its_completion_that_says_so():
    first, skipped, last = rewarded("trl_skips", "a", "b", "c")[0]
    assert (first, last) == (RewardResult(1.0), RewardResult(0.5))
    assert isinstance(skipped, RewardFailed)
    assert "does not apply" in str(skipped)


def test_a_function_of_verl_gets_the_fields_of_its_row_by_name():
    row = item(metadata={"data_source": "gsm8k", "extra_info": {"split": "train"}})
    results, seen = rewarded("verl", "it is 12", "13", of=row)
    assert values(results) == [1, 0]
    expected = {"data_source": "gsm8k", "ground_truth": "12", "extra_info": {"split": "train"}}
    assert seen == [expected] * 2


def test_a_row_without_verls_fields_gives_what_it_has():
    _, (seen,) = rewarded("verl", "12")
    assert seen == {"data_source": "", "ground_truth": "12", "extra_info": {"level": 3}}
    _, (seen,) = rewarded("verl", "12", params={"data_source": "mine"})
    assert seen["data_source"] == "mine"


@pytest.mark.parametrize(
    "metadata", [{"reward_model": {"style": "rule", "ground_truth": "12"}}, {"ground_truth": "12"}]
)
def test_the_ground_truth_is_found_where_verls_data_has_it(metadata):
    results, _ = rewarded("verl", "12", of=item(answer=None, metadata=metadata))
    assert values(results) == [1]


def test_a_row_without_a_ground_truth_is_a_failure_that_names_the_key():
    (result,), _ = rewarded("verl", "12", of=item(answer=None))
    assert "data.answer_field" in str(result)


def test_a_dictionary_of_verl_is_a_reward_with_its_numbers_as_parts():
    (result,), _ = rewarded("verl_with_parts", "abc")
    assert result == RewardResult(0.5, {"acc": 1.0, "length": 3.0})
    (result,), _ = rewarded("verl_without_score", "abc")
    assert "without 'score'" in str(result)


def test_an_asynchronous_function_is_waited_for():
    assert values(rewarded("patient", "abc", "d")[0]) == [3, 1]


def test_columns_are_asked_for_only_where_all_rows_have_them():
    named = RewardSource(
        function="helpers.reward_functions:trl_with_column", columns=("solution", "level")
    )
    assert named.load().convention.name == "TRL"
