"""One prompt or many, as text, messages, ids or requests; whatever else is refused with what is accepted."""

import numpy as np
import pytest
from helpers.tiny_engine import request, tiny_engine

from zerogap.engine.prompts import as_requests
from zerogap.errors import InvalidRequest
from zerogap.types import SamplingParams

HELLO = [{"role": "user", "content": "hello"}]
PARAMS = SamplingParams(n=2, max_new_tokens=3)


def encode(prompt):
    text = prompt if isinstance(prompt, str) else "|".join(m["content"] for m in prompt)
    return [len(text), *map(ord, text)]


def ids_of(prompts):
    return [list(r.input_ids) for r in as_requests(prompts, PARAMS, encode)]


@pytest.mark.parametrize(
    ("one", "ids"),
    [
        ("abc", [3, 97, 98, 99]),
        ("", [0]),
        (HELLO, encode("hello")),
        ([*HELLO, {"role": "assistant", "content": "b"}], encode("hello|b")),
        ([5, 6, 7], [5, 6, 7]),
        ((5, 6), [5, 6]),
        (np.array([5, 6]), [5, 6]),
        ([np.int64(5)], [5]),
    ],
)
def test_one_prompt_and_a_list_of_it_are_read_alike(one, ids):
    assert ids_of(one) == [ids]
    assert ids_of([one]) == [ids]
    assert ids_of([one, "z", one]) == [ids, encode("z"), ids]
    assert all(r.sampling_params == PARAMS for r in as_requests([one, one], PARAMS, encode))
    assert as_requests(one, None, encode)[0].sampling_params == SamplingParams()


def test_requests_pass_through_and_keep_their_parameters():
    given = request([1, 2])
    assert as_requests(given, None, None) == as_requests([given], None, None) == [given]
    with pytest.raises(InvalidRequest, match="has sampling_params of its own"):
        as_requests(given, PARAMS, None)
    assert as_requests([], None, None) == []


@pytest.mark.parametrize(
    "given",
    [None, 7, 1.5, b"abc", {"role": "user", "content": "x"}, [1.5], ["a", None], [[1, "a"]], [True], [[]], object()],
)  # fmt: skip
def test_anything_else_is_refused_with_what_is_accepted(given):
    with pytest.raises(
        InvalidRequest, match=r"cannot be continued.*; give text, a list of messages"
    ):
        as_requests(given, PARAMS, encode)


@pytest.mark.parametrize("array", [np.zeros((2, 2), int), np.array([0.5])])
def test_an_array_of_another_kind_is_refused(array):
    with pytest.raises(InvalidRequest, match="is no prompt; give one dimension of integer ids"):
        as_requests([array], None, encode)


@pytest.mark.parametrize(("given", "what"), [("abc", "text"), (HELLO, "messages")])
def test_an_engine_without_a_tokenizer_says_how_to_have_one(given, what):
    with pytest.raises(InvalidRequest, match=rf"no tokenizer and cannot read {what}.*load_policy"):
        tiny_engine().generate(given)
