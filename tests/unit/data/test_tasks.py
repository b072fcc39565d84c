import pytest

from zerogap.data.builtin import build_task, task_items
from zerogap.data.tasks import TASKS
from zerogap.errors import DataError


def items(name, split, size, seed=0):
    return task_items(build_task(name, {}), name=name, split=split, size=size, seed=seed)


@pytest.mark.parametrize("name", TASKS)
def test_training_and_evaluation_share_no_question(name):
    train, held_out = items(name, "train", 300), items(name, "eval", 60)
    keys = {i.metadata["key"] for i in train}, {i.metadata["key"] for i in held_out}
    assert not keys[0] & keys[1]
    assert len({i.question for i in train}) == len(train)
    assert min(len(train), len(held_out)) >= 10


@pytest.mark.parametrize("name", TASKS)
def test_questions_are_a_function_of_the_seed_and_a_larger_size_only_adds(name):
    assert items(name, "train", 40) == items(name, "train", 80)[:40]
    assert items(name, "train", 40) != items(name, "train", 40, seed=1)


@pytest.mark.parametrize("name", TASKS)
def test_the_answer_scores_one_and_garbage_nearly_nothing(name):
    task = build_task(name, {})
    for item in items(name, "train", 20):
        assert task.score(item.answer, item.answer) == 1
        assert task.score("I do not know", item.answer) < 0.7
        for garbage in ("", "\x00\x01", "?!", "12345"):
            assert task.score(garbage, item.answer) < 0.1


@pytest.mark.parametrize("name", TASKS)
def test_a_mistake_looks_like_an_answer_and_scores_less(name):
    task = build_task(name, {})
    mistakes = items(name, "train", 40)
    assert [i.rejected for i in mistakes] == [i.rejected for i in items(name, "train", 40)]
    for item in mistakes:
        assert item.rejected != item.answer
        assert len(item.rejected) <= len(item.answer) + 1
        assert task.score(item.rejected, item.answer) < 1


def test_questions_are_the_same_on_every_machine():
    assert [i.question for i in items("copy_letters", "train", 3)] == ["aefa>", "gfeh>", "cdag>"]


def test_a_small_space_gives_all_it_has():
    assert (
        len(items("multiplication", "train", 1000)) + len(items("multiplication", "eval", 1000))
        == 64
    )


def test_a_product_and_its_mirror_image_are_in_one_split():
    train = {i.metadata["key"] for i in items("multiplication", "train", 100)}
    assert all(int(a) <= int(b) for a, b in map(str.split, train))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("divide", {}, "choose one of multiplication"),
        ("reverse", {"length": 3}, r"allowed: min_length \(int\)"),
        ("reverse", {"min_length": "3"}, "not of this type"),
        ("reverse", {"min_length": 5, "max_length": 4}, "1 <= min_length <= max_length"),
        ("repeat_letter", {"letters": "aa"}, "two different lower-case letters"),
    ],
)
def test_wrong_parameters_are_refused(name, params, message):
    with pytest.raises(DataError, match=message):
        build_task(name, params)
