import math

import numpy as np
import pytest
from helpers.run_folder import kept_sample
from helpers.samples import ragged

from zerogap.report.rollouts import KeptRollout
from zerogap.report.tokens import (
    CHANCE_LEGEND,
    FIELDS,
    GAP_LEGEND,
    MAX_TOKENS,
    Omission,
    TokenView,
    chance_style,
    completion_views,
    gap_style,
    prompt_text,
    visible,
)
from zerogap.types import Source


def decode(token_id):
    return f"<{token_id}>"


def kept(sample, *, gap=0.0):
    return KeptRollout(1, sample, sample.rollout_log_probs + np.float32(gap), {})


def fields(view):
    return view.detail.split("|")


def test_only_bitwise_equal_log_probs_have_the_colour_of_zero():
    sample = kept_sample([5, 6], log_prob=-0.5)
    trainer = sample.rollout_log_probs.copy()
    trainer[-1] = np.nextafter(trainer[-1], np.float32(0))
    styles = [view.style for view in completion_views(KeptRollout(1, sample, trainer, {}), decode)]
    assert styles[0].split()[0] == "gap-zero"
    assert styles[1].split()[0] == "gap-0"


def test_every_colour_is_in_the_legend_and_rises_with_the_gap():
    gaps = [0.0, 1e-30, 1e-5, 5e-4, 5e-3, 5e-2, 5.0, math.nan]
    assert [gap_style(gap) for gap in gaps] == [style for style, _ in GAP_LEGEND]
    chances = [math.log(p) for p in (0.95, 0.7, 0.2, 0.02, 1e-5)]
    assert [chance_style(c) for c in (*chances, math.nan)] == [style for style, _ in CHANCE_LEGEND]
    assert gap_style(math.inf) == "gap-5"


def test_pointing_at_a_token_tells_everything_about_it():
    (view,) = completion_views(kept(kept_sample([7], log_prob=-0.5), gap=0.25), decode)
    assert fields(view) == ["3", "7", "policy", "-0.5", "-0.25", "0.25", "0", "0", "", ""]


def test_optional_columns_are_told_of_a_token_and_long_rows_cut():
    kept_sets = ragged([[], [], [], [3, 7]])
    routes = np.arange(40, dtype=np.uint8).reshape(4, 5, 2)
    sample = kept_sample([7], kept_sets=kept_sets, routes=routes)
    (view,) = completion_views(kept(sample), decode)
    shown = dict(zip(FIELDS, fields(view), strict=True))
    assert shown["kept sets"] == "3, 7"
    assert shown["routes"] == "30, 31, 32, 33, 34, 35, 36, 37, … (10 in all)"


def test_host_and_environment_tokens_are_not_compared_and_named():
    sample = kept_sample([7]).append(np.array([8]), source=Source.ENVIRONMENT)
    environment = completion_views(kept(sample), decode)[1]
    assert environment.style == "gap-none chance-none foreign"
    assert fields(environment)[2:] == ["environment, not sampled", *[""] * 7]


def test_a_sampled_token_that_does_not_train_is_named():
    sample = kept_sample([7], loss_mask=np.zeros(4, bool))
    (view,) = completion_views(kept(sample), decode)
    assert fields(view)[2] == "policy, sampled, does not train"


def test_the_prompt_is_not_part_of_the_completion():
    sample = kept_sample([7, 8], prompt_ids=(1, 2))
    assert prompt_text(sample, decode) == "<1><2>"
    assert [view.text for view in completion_views(kept(sample), decode)] == ["<7>", "<8>"]


def test_a_line_break_is_seen_and_kept():
    (view,) = completion_views(kept(kept_sample([7])), lambda _: "a\n")
    assert view.text == "a↵\n"


@pytest.mark.parametrize(
    "character", ["\x00", "\x1b", "\u202e", "\u200b", "\ud800", "\u2028", "\r"]
)
def test_what_cannot_be_seen_is_spelled_out(character):
    assert visible(f"a{character}b") == f"a⟨U+{ord(character):04X}⟩b"


def test_what_can_be_seen_stays():
    text = "a\tb\n é 数 🙂 <&>"
    assert visible(text) == text


@pytest.mark.parametrize("error", [KeyError, IndexError, ValueError, OverflowError])
def test_an_id_outside_the_tokenizer_is_shown_as_its_number(error):
    def broken(token_id):
        raise error(token_id)

    (view,) = completion_views(kept(kept_sample([99_999])), broken)
    assert view.text == "⟨id 99999⟩"
    (empty,) = completion_views(kept(kept_sample([4])), lambda _: "")
    assert empty.text == "⟨id 4⟩"


def test_a_long_completion_shows_both_ends_and_the_largest_gap_between_them():
    sample = kept_sample([5] * (MAX_TOKENS + 10))
    trainer = sample.rollout_log_probs.copy()
    trainer[3 + MAX_TOKENS * 3 // 4] += 0.125
    views = completion_views(KeptRollout(1, sample, trainer, {}), decode)
    (omission,) = [view for view in views if isinstance(view, Omission)]
    assert omission == Omission(10, "0.125")
    assert sum(isinstance(view, TokenView) for view in views) == MAX_TOKENS
    assert fields(views[-1])[0] == str(len(sample) - 1)
