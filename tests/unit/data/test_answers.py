from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerogap.data.answers import (
    character_credit,
    last_number,
    last_word,
    sequence_credit,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 * 400 = 1,200.", "1200"),
        ("-5", "-5"),
        ("x = -3.50", "-3.5"),
        ("5-3", "3"),
        ("(1)-3", "3"),
        ("1,2,3", "3"),
        ("the answer is...12", "12"),
        ("The answer is **12**, I think.", "12"),
        ("$12$ or 13%", "13"),
        ("minus \N{MINUS SIGN}4", "-4"),
        ("no number", None),
        ("a1 v2", None),
        ("", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.text())
def test_reading_an_answer_never_raises(text):
    last_number(text)
    last_word(text)
    assert 0 <= character_credit(text, "abc", alphabet="abc") <= 1
    assert 0 <= sequence_credit(text, "abc") <= 1


def test_last_word_ignores_quotes_and_case():
    assert last_word("The reversed word is 'Tac'.") == "tac"


@pytest.mark.parametrize(
    ("given", "credit"), [("abc", 1), ("cba", 1 / 3), ("ab", 4 / 5), ("xyz", 0), ("", 0)]
)
def test_sequence_credit_is_twice_the_common_part_over_both_lengths(given, credit):
    assert sequence_credit(given, "abc") == credit


def test_character_credit_climbs_a_ladder_from_noise_to_the_right_letter():
    ladder = [character_credit(c, "a", alphabet="abc") for c in ("\x01", "#", "z", "b", "a")]
    assert ladder == sorted(set(ladder))
    assert (ladder[0], ladder[-1]) == (0, 1)


def test_missing_and_surplus_characters_cost():
    assert character_credit("aa", "aaaa", alphabet="ab") == 0.5
    assert character_credit("aaaa", "aa", alphabet="ab") == 0.5
