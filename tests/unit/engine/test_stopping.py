import numpy as np
import pytest

from zerogap.engine.stopping import IncrementalText, StopConditions
from zerogap.types import FinishReason, SamplingParams

EOS = frozenset({300, 301})


def decode_bytes(ids, skip_special=True) -> str:
    """Ids below 256 are bytes, the rest special tokens."""
    text = bytes(i for i in ids if i < 256).decode(errors="replace")
    return text if skip_special else text + "".join(f"<{i}>" for i in ids if i >= 256)


def decode_bytes_one_mark_each(ids, skip_special=True) -> str:
    """As decoders with byte fallback do: every byte that is no character gives one U+FFFD."""
    out, pending = "", bytearray()
    for byte in ids:
        pending.append(byte)
        try:
            out, pending = out + pending.decode(), bytearray()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                out, pending = out + "\ufffd" * len(pending), bytearray()
    return out + "\ufffd" * len(pending)


def decode_words(ids, skip_special=True) -> str:
    """Words with a space before each, stripped at the start of a text (as sentencepiece does)."""
    return "".join(f" w{i}" for i in ids).removeprefix(" ")


def conditions(detokenizer=decode_bytes, **params) -> StopConditions:
    given = SamplingParams(**{"max_new_tokens": 50} | params)
    return StopConditions(given, eos_token_ids=EOS, detokenizer=detokenizer)


def feed(stop: StopConditions, ids) -> tuple[FinishReason | None, np.ndarray]:
    """Tokens one by one until the end; the reason and what was drawn by then."""
    for count in range(1, len(ids) + 1):
        drawn = np.array(ids[:count], np.int32)
        reason = stop.check(drawn)
        if reason is not None:
            return reason, drawn
    return None, np.array(ids, np.int32)


@pytest.mark.parametrize("token", [300, 301, 65])
def test_every_declared_id_stops(token):
    stop = conditions(stop_token_ids=(65,))
    reason, drawn = feed(stop, [66, token, 67])
    assert reason == FinishReason("stop", matched=token)
    assert drawn.tolist() == [66, token]
    assert stop.final_text(drawn, reason) == "B"


def test_ignoring_eos_leaves_the_requests_own_ids():
    assert feed(conditions(ignore_eos=True), [300, 301])[0] is None
    reason, _ = feed(conditions(ignore_eos=True, stop_token_ids=(301,)), [300, 301])
    assert reason == FinishReason("stop", matched=301)


def test_a_stop_id_beats_the_length_limit():
    reason, _ = feed(conditions(max_new_tokens=2), [65, 300])
    assert reason.kind == "stop"
    reason, _ = feed(conditions(max_new_tokens=2), [65, 66])
    assert reason == FinishReason("length")


def test_a_stop_string_cuts_the_text_and_no_id():
    stop = conditions(stop=("</a>",))
    reason, drawn = feed(stop, list(b"x</a>yz"))
    assert reason == FinishReason("stop", matched="</a>")
    assert bytes(drawn.tolist()) == b"x</a>", "an id was cut or added"
    assert stop.final_text(drawn, reason) == "x"


def test_a_stop_string_inside_a_token_drops_what_follows_it():
    pieces = {1: "4</answer> and", 2: "2"}
    stop = conditions(lambda ids, _: "".join(pieces[i] for i in ids), stop=("</answer>",))
    reason, drawn = feed(stop, [2, 1])
    assert stop.final_text(drawn, reason) == "24"
    kept = conditions(
        lambda ids, _: "".join(pieces[i] for i in ids), stop=("</answer>",), no_stop_trim=True
    )
    reason, drawn = feed(kept, [2, 1])
    assert kept.final_text(drawn, reason) == "24</answer>"


def test_the_earliest_of_several_stop_strings_wins():
    pieces = {1: "abcd"}
    stop = conditions(lambda ids, _: "".join(pieces[i] for i in ids), stop=("cd", "bc"))
    assert feed(stop, [1])[0].matched == "bc"


def test_stop_strings_before_the_minimum_do_not_count():
    stop = conditions(stop=("ab",), min_new_tokens=3)
    reason, drawn = feed(stop, list(b"abxab"))
    assert bytes(drawn.tolist()) == b"abxab"
    assert stop.final_text(drawn, reason) == "abx"


def test_a_stop_string_may_end_in_a_character_of_several_tokens():
    stop = conditions(stop=("né",))
    reason, drawn = feed(stop, list("fin né!".encode()))
    assert reason.matched == "né"
    assert stop.final_text(drawn, reason) == "fin "


def test_no_stop_trim_keeps_a_stop_ids_text():
    trimmed, kept = (
        conditions(stop_token_ids=(33,)),
        conditions(stop_token_ids=(33,), no_stop_trim=True),
    )
    for stop, text in ((trimmed, "a"), (kept, "a!")):
        reason, drawn = feed(stop, list(b"a!"))
        assert stop.final_text(drawn, reason) == text


def test_special_tokens_show_only_when_asked_for():
    shown = conditions(skip_special_tokens=False, no_stop_trim=True)
    reason, drawn = feed(shown, [65, 300])
    assert shown.final_text(drawn, reason) == "A<300>"


def test_without_a_detokenizer_there_is_no_text():
    stop = conditions(None)
    reason, drawn = feed(stop, [300])
    assert stop.final_text(drawn, reason) is None
    assert stop.visible_text() is None


@pytest.mark.parametrize("decode", [decode_bytes, decode_bytes_one_mark_each])
@pytest.mark.parametrize("text", ["plain", "é", "a🙂b", "日本語", "x🙂"])
def test_text_grows_by_whole_characters_and_is_never_taken_back(decode, text):
    incremental = IncrementalText(decode, skip_special=True)
    ids = np.array(list(text.encode()), np.int32)
    seen = [""]
    for count in range(1, len(ids) + 1):
        incremental.advance(ids[:count])
        assert incremental.text.startswith(seen[-1])
        assert text.startswith(incremental.text), "half a character was shown"
        seen.append(incremental.text)
    assert seen[-1] == text


def test_bytes_that_never_become_a_character_are_shown_in_the_end():
    incremental = IncrementalText(decode_bytes, skip_special=True)
    ids = np.array([0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 65, 66], np.int32)
    for count in range(1, len(ids) + 1):
        incremental.advance(ids[:count])
    assert incremental.text == decode_bytes(ids.tolist())


def test_spaces_between_words_survive_incremental_decoding():
    incremental = IncrementalText(decode_words, skip_special=True)
    ids = np.arange(1, 8, dtype=np.int32)
    for count in range(1, len(ids) + 1):
        incremental.advance(ids[:count])
        assert incremental.text == decode_words(ids[:count].tolist())


def test_a_stream_holds_back_what_may_become_a_stop_string():
    stop = conditions(stop=("</a>", "a</"))
    visible = []
    ids = list(b"x</b>")
    for count in range(1, len(ids) + 1):
        stop.check(np.array(ids[:count], np.int32))
        visible.append(stop.visible_text())
    assert visible == ["x", "x", "x", "x</b", "x</b>"]
