import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerogap.data import PromptItem, PromptStream
from zerogap.errors import CheckpointError, DataError

ITEMS = [PromptItem(item_id=str(k), question=f"q{k}") for k in range(7)]


def ids(items):
    return [int(i.item_id) for i in items]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 99))
def test_every_epoch_has_every_prompt_once(sizes, seed):
    stream = PromptStream(ITEMS, seed=seed)
    taken = ids(item for size in sizes for item in stream.take(size))
    for start in range(0, len(taken) - 6, 7):
        assert sorted(taken[start : start + 7]) == list(range(7))


def test_epochs_differ_in_order_and_seeds_too():
    stream = PromptStream(ITEMS, seed=0)
    epochs = [ids(stream.take(7)) for _ in range(3)]
    assert len({tuple(e) for e in epochs}) == 3
    assert ids(PromptStream(ITEMS, seed=1).take(7)) != epochs[0]


def test_the_files_order_can_be_kept():
    assert ids(PromptStream(ITEMS, seed=0, shuffle=False).take(9)) == [0, 1, 2, 3, 4, 5, 6, 0, 1]


def test_a_resumed_stream_goes_on_as_if_nothing_had_happened():
    whole = PromptStream(ITEMS, seed=3)
    expected = ids(whole.take(5)) + ids(whole.take(11))
    first = PromptStream(ITEMS, seed=3)
    before = ids(first.take(5))
    second = PromptStream(ITEMS, seed=3)
    second.load_state_dict(first.state_dict())
    assert before + ids(second.take(11)) == expected
    assert second.state_dict()["position"] == 16


def test_looking_ahead_changes_nothing():
    stream = PromptStream(ITEMS, seed=0)
    ahead = stream.at(0, 10)
    assert stream.take(10) == ahead


@pytest.mark.parametrize(("items", "seed"), [(ITEMS[:6], 3), (ITEMS, 4)])
def test_a_state_of_other_data_or_another_seed_is_refused(items, seed):
    state = PromptStream(ITEMS, seed=3).state_dict()
    with pytest.raises(CheckpointError, match="resume with the original data and"):
        PromptStream(items, seed=seed).load_state_dict(state)


def test_no_prompts_are_refused():
    with pytest.raises(DataError, match="no training prompts"):
        PromptStream([], seed=0)
