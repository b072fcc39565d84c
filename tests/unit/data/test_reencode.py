import numpy as np
import pytest
from helpers.chat_tokenizers import merging_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from zerogap.data import byte_tokenizer, reencode

BYTES, MERGING = byte_tokenizer(), merging_tokenizer()
H, E, L, O, HE, LO, LLO, HELLO = range(8)  # noqa: E741


def check_partners(ids, again):
    """Partners have one id and keep their order."""
    has_one = again.partner_T >= 0
    assert (again.token_ids[again.partner_T[has_one]] == np.array(ids)[has_one]).all()
    assert (np.diff(again.partner_T[has_one]) > 0).all()


def test_ids_that_come_back_are_their_own_partners():
    again = reencode([HELLO, HE, HELLO], MERGING)
    assert again.is_same
    assert again.partner_T.tolist() == [0, 1, 2]


def test_a_merge_takes_its_pieces_away_and_shifts_what_follows():
    again = reencode([H, HE, LLO, LO, H, E], MERGING)
    assert again.token_ids.tolist() == [H, HELLO, LO, HE]
    assert again.partner_T.tolist() == [0, -1, -1, 2, -1, -1]
    assert not again.is_same


def test_special_tokens_stay_tokens():
    ids = [256, *b"hi", 257, *b"yes", 257]
    assert reencode(ids, BYTES).is_same


def test_characters_of_several_tokens_are_whole():
    ids = [256, *"é€😀".encode()]
    assert reencode(ids, BYTES).is_same


def test_bytes_that_are_no_text_are_lost_and_what_follows_is_not():
    ids = [256, *b"a", 0xC3, *b"bc", 0xFF, 0xFE, *"dé".encode()]
    again = reencode(ids, BYTES)
    differing = [ids[at] for at in np.flatnonzero(again.partner_T < 0)]
    assert differing == [0xC3, 0xFF, 0xFE]
    check_partners(ids, again)


def test_the_same_id_at_another_place_is_no_partner():
    # "ello" + "hello": the l of the first word is not the one that the merge took from the second.
    again = reencode([E, L, LO, HE, L, LO], MERGING)
    assert again.token_ids.tolist() == [E, LLO, HELLO]
    assert again.partner_T.tolist() == [0, -1, -1, -1, -1, -1]


@given(st.lists(st.integers(0, 7), max_size=40))
def test_partners_have_one_id_and_keep_their_order(ids):
    again = reencode(ids, MERGING)
    check_partners(ids, again)
    assert MERGING.decode(again.token_ids) == MERGING.decode(ids)


@given(st.lists(st.integers(0, 258), max_size=40))
def test_any_bytes_can_be_compared(ids):
    again = reencode(ids, BYTES)
    check_partners(ids, again)
    assert again.is_same == (BYTES.encode(BYTES.decode(ids, False)) == ids)


@given(st.text(max_size=30))
def test_every_text_comes_back_whole(text):
    assert reencode(BYTES.encode(text), BYTES).is_same


def normalising_tokenizer():
    """The byte tokenizer behind NFC, as Qwen's is."""
    from tokenizers import normalizers

    tokenizer = byte_tokenizer()
    tokenizer._backend.normalizer = normalizers.NFC()
    return tokenizer


def test_around_what_normalisation_changes_tokens_keep_their_partners():
    decomposed = "abe\u0301cd"
    ids = byte_tokenizer().encode(decomposed)
    again = reencode(ids, normalising_tokenizer())
    kept = bytes(ids[at] for at in np.flatnonzero(again.partner_T >= 0))
    assert kept == b"abcd"
    check_partners(ids, again)


@pytest.mark.parametrize("length", [2_000])
def test_a_run_of_lost_bytes_is_quick(length):
    again = reencode([0xFF] * length, BYTES)
    assert (again.partner_T == -1).all()
