import pytest

from zerogap.engine.requests import Limits, check_request, open_request, open_score
from zerogap.errors import InvalidRequest, RequestTooLong
from zerogap.types import GenerateRequest, SamplingParams


def limits(**changes) -> Limits:
    defaults = {
        "vocab_limit": 50,
        "max_positions": 100,
        "num_pages": 4,
        "eos_token_ids": frozenset({2, 60}),
        "detokenizer": None,
    }
    return Limits(**defaults | changes)


def make_request(ids=(1, 2, 3), **params) -> GenerateRequest:
    return GenerateRequest(
        input_ids=ids, sampling_params=SamplingParams(**{"max_new_tokens": 8} | params), rid="q"
    )


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (make_request(ids=()), ["request q", "input_ids is empty"]),
        (make_request(ids=(1, 50, -3)), ["[50, -3]", "50 ids"]),
        (make_request(stop=("x",)), ["stop = ('x',)", "no detokenizer"]),
        (make_request(logit_bias={50: 1.0}), ["logit_bias {50: 1.0}", "below 50"]),
        (make_request(logit_bias={5: float("nan")}), ["logit_bias"]),
        (make_request(sampling_seed=2**63), ["sampling_seed", "64 bits"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_values(request_, words):
    with pytest.raises(InvalidRequest) as error:
        check_request(request_, limits(num_pages=100))
    assert all(word in str(error.value) for word in words)


def test_what_can_never_fit_is_refused_with_the_numbers():
    with pytest.raises(RequestTooLong, match=r"30 prompt .* 71 = 101 exceed .* 100 .* at most 70"):
        check_request(make_request(ids=(1,) * 30, max_new_tokens=71), limits(num_pages=100))
    with pytest.raises(RequestTooLong, match=r"need 65 KV slots, but the cache has 64"):
        check_request(make_request(ids=(1,) * 30, max_new_tokens=36), limits())


def test_the_last_token_needs_no_slot():
    check_request(make_request(ids=(1,) * 30, max_new_tokens=35), limits())
    check_request(make_request(ids=(1,) * 64, max_new_tokens=0), limits())
    with pytest.raises(RequestTooLong):
        check_request(make_request(ids=(1,) * 65, max_new_tokens=0), limits())


def test_siblings_share_a_seed_and_differ_in_their_index():
    opened = open_request(make_request(n=3), limits(), arrival=4, seed=11, is_owned=True)
    assert [(s.order, s.seed, s.index) for s in opened.sequences] == [
        ((4, index), 11, index) for index in range(3)
    ]
    given = open_request(
        make_request(sampling_seed=-5), limits(), arrival=4, seed=11, is_owned=True
    )
    assert given.sequences[0].seed == -5


def test_stop_ids_outside_the_vocabulary_are_not_edited():
    opened = open_request(
        make_request(min_new_tokens=1), limits(), arrival=0, seed=0, is_owned=True
    )
    assert opened.sequences[0].edits.entries()[0].tolist() == [2]


def test_plain_sampling_has_no_edits():
    plain = make_request(temperature=0.5, top_p=0.9)
    (sequence,) = open_request(plain, limits(), arrival=0, seed=0, is_owned=True).sequences
    assert sequence.edits is None


@pytest.mark.parametrize("start", [0, 5, -1])
def test_scores_start_where_something_precedes(start):
    with pytest.raises(InvalidRequest, match=rf"start = {start}"):
        open_score((1, 2, 3, 4), start=start, temperature=1.0, limits=limits(), arrival=0)
