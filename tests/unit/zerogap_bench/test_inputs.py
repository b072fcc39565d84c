import argparse

import pytest

from zerogap_bench.prompts import word_problems
from zerogap_bench.shapes import RunShape
from zerogap_bench.tables import show, spread


def test_a_shape_is_prompts_answers_and_new_tokens():
    shape = RunShape.parse("8x4x64")
    assert (shape.num_sequences, shape.num_output_tokens, str(shape)) == (32, 2048, "8x4x64")


@pytest.mark.parametrize("text", ["8x8", "8x8x0", "8x-1x4", "axbxc", ""])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a shape"):
        RunShape.parse_list(text)


def test_word_problems_are_the_same_everywhere_and_all_different():
    assert word_problems(32) == word_problems(40)[:32]
    assert len(set(word_problems(64))) == 64
    assert word_problems(4) != word_problems(4, seed=1)


def test_word_problems_are_about_equally_long():
    lengths = [len(problem.split()) for problem in word_problems(64)]
    assert max(lengths) - min(lengths) <= 2


def test_a_spread_is_the_median_with_its_extremes():
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "repeats": 3}


def test_cells_have_three_significant_digits():
    assert [show(v) for v in (0.12345, 12.345, 12345.6, None, 7)] == ["0.123", "12.3", "12346", "-", "7"]  # fmt: skip
