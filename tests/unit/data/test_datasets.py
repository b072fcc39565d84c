import pytest

from zerogap.config.data import BuiltinData, ReasoningGymData
from zerogap.data import build_prompt_sets
from zerogap.errors import DataError

FEW_QUESTIONS = {"dataset": "count_bits", "params": {"min_n": 1, "max_n": 30}}


def gym(**fields):
    pytest.importorskip("reasoning_gym")
    narrow = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    defaults = {"dataset": "products", "params": narrow, "size": 40, "eval_size": 10}
    return ReasoningGymData(kind="reasoning_gym", **(defaults | fields))


def test_builtin_task_comes_with_its_score():
    sets = build_prompt_sets(BuiltinData(kind="builtin", name="reverse", size=30, eval_size=5))
    assert (len(sets.train), len(sets.evaluation)) == (30, 5)
    item = sets.train[0]
    assert sets.score(item.answer, item) == 1
    assert sets.score("?", item) == 0


def test_more_held_out_questions_than_there_are_is_refused_with_the_number():
    with pytest.raises(DataError, match="set eval_size = 15"):
        build_prompt_sets(BuiltinData(kind="builtin", name="multiplication", eval_size=50))


def test_reasoning_gym_scores_its_own_answers_and_no_garbage():
    sets = build_prompt_sets(gym())
    for item in [*sets.train, *sets.evaluation]:
        assert sets.score(f" {item.answer}\n", item) == 1
        assert sets.score("garbage", item) < 0.1


def test_reasoning_gym_training_questions_are_never_evaluation_questions():
    # 60 draws of at most 30 questions: many would be among the held-out ones by chance.
    sets = build_prompt_sets(gym(**FEW_QUESTIONS, size=60, eval_size=5))
    held_out = {i.question for i in sets.evaluation}
    assert not held_out & {i.question for i in sets.train}


def test_reasoning_gym_prompts_are_a_function_of_seed_and_index():
    sets, again, other = (build_prompt_sets(gym(seed=s)) for s in (1, 1, 2))
    assert sets.train[7] == again.train[7]
    assert list(sets.train) != list(other.train)
    assert sets.train[-1] == sets.train[39]
    with pytest.raises(IndexError):
        sets.train[40]


def test_a_space_that_is_used_up_is_refused():
    config = gym(**FEW_QUESTIONS, size=1, eval_size=500)
    with pytest.raises(DataError, match=r"lower data\.eval_size"):
        build_prompt_sets(config).train[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "nothing"}, "it has ab, "),
        ({"params": {"terms": 2}}, "refuses them"),
        ({"params": {"min_terms": 5, "max_terms": 2}}, "refuses them"),
    ],
)
def test_wrong_reasoning_gym_settings_are_refused(fields, message):
    with pytest.raises(DataError, match=message):
        build_prompt_sets(gym(**fields))
