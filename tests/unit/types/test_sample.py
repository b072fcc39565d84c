"""What a sample refuses, and what a turn adds to it; tests/property covers every operation on every column."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.samples import completed_sample, make_output, ragged

from zerogap.errors import DataError
from zerogap.types import (
    FinishReason,
    Outcome,
    Ragged,
    Sample,
    Source,
    Turn,
    WeightVersionSpan,
)


def kept(*rows, **changes) -> Sample:
    """A prompt of 2 tokens and the drawn tokens 98, 257, with sets of all four."""
    return replace(completed_sample(), kept_sets=ragged(rows), **changes)


def routed(*, num_prompt=2, output_ids=(98, 257), first=0, prompt_ids=None, **changes):
    """An output with one layer and one expert per token, numbered from ``first``."""
    ids = range(num_prompt) if prompt_ids is None else prompt_ids
    rows = len(ids) + len(output_ids) - 1
    routes = np.arange(first, first + rows, dtype=np.uint8)[:, None, None]
    return make_output(prompt_ids=ids, output_ids=output_ids, routes=routes, **changes)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (([], [], [97, 99], [257]), r"without the drawn token \(first at position 2"),
        (([], [], [98], []), None),
        (([], [98], [98], [257]), r"on a token that was not sampled \(first at position 1"),
        (([], [], [99, 98], [257]), r"not in rising order \(first at position 2"),
        (([], [], [98], [257, 257]), r"not in rising order \(first at position 3"),
        (([], [], [3, 98], [0, 257]), None),
        (([], [98], [257]), "columns differ in length"),
    ],
)
def test_kept_sets_hold_what_was_drawn(rows, problem):
    if problem is None:
        assert np.diff(kept(*rows).kept_sets.offsets).tolist() == [len(row) for row in rows]
    else:
        with pytest.raises(DataError, match=rf"g/0: .*{problem}"):
            kept(*rows)


def test_a_token_drawn_from_a_part_needs_its_set_if_sets_are_recorded():
    part = {"kept_log_mass": np.array([0, 0, 0, -0.5])}
    replace(completed_sample(), **part)
    with pytest.raises(DataError, match=r"without the drawn token .* position 3"):
        kept([], [], [98], [], **part)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"routes": np.zeros((4, 1, 1), np.int32)}, "routes has type int32, but must have one of uint8, uint16"),
        ({"routes": np.zeros((4, 2), np.uint8)}, r"routes has shape \(4, 2\), but its axes are \(token, layer, choice\)"),
        ({"routes": np.zeros((3, 1, 1), np.uint8)}, "columns differ in length: .*'routes': 3"),
        ({"kept_sets": [[], [], [98], [257]]}, "kept_sets is a list, .* give a Ragged"),
        ({"kept_sets": Ragged(np.array([1]), np.array([0, 0, 0, 0, 2]))}, "give offsets that rise from 0 to the number of values"),
        ({"kept_sets": Ragged(np.array([1]), np.array([0, 2, 1, 1, 1]))}, "give offsets that rise from 0 to the number of values"),
        ({"token_ids": np.array([1, 2, 3, 2**33])}, "token_ids: values from 1 to 8589934592 do not fit int32"),
        ({"loss_mask": np.zeros((4, 1))}, r"loss_mask has shape \(4, 1\)"),
        ({"turns": (Turn(start=1, end=3),)}, r"turn \[1, 3\) of 4 tokens"),
        ({"turns": (Turn(start=2, end=5),)}, r"turn \[2, 5\) of 4 tokens"),
        ({"turns": (Turn(start=2, end=4), Turn(start=3, end=4))}, r"turn \[3, 4\) of 4 tokens"),
    ],
)  # fmt: skip
def test_what_a_declaration_does_not_allow_is_refused(changes, problem):
    with pytest.raises(DataError, match=f"rollout g/0: .*{problem}"):
        replace(completed_sample(), **changes)


def test_a_turn_keeps_the_versions_that_sampled_it():
    output = make_output(weight_version=np.array([4, 6]))
    first = Sample.from_output(output, group_id="g", temperature=1.0)
    asked = first.append([10, 11], source=Source.ENVIRONMENT)
    second = asked.append_output(
        make_output(prompt_ids=asked.token_ids, seed=9, finish_reason=FinishReason("length"))
    )
    assert second.weight_version.tolist() == [-1, -1, 4, 6, -1, -1, 0, 0]
    assert [second.version_spans(turn) for turn in second.turns] == [
        (WeightVersionSpan(4, 0, 1), WeightVersionSpan(6, 1, 2)),
        (WeightVersionSpan(0, 0, 2),),
    ]
    assert [(turn.start, turn.end, turn.seed) for turn in second.turns] == [(2, 4, 1), (6, 8, 9)]
    assert second.outcome is Outcome.TRUNCATED
    assert [turn.finish_reason.kind for turn in second.turns] == ["stop", "length"]
    assert (second.num_prompt_tokens, second.num_completion_tokens) == (2, 4)
    assert second.text == "bb"


def test_a_turn_behind_other_ids_is_refused():
    with pytest.raises(DataError, match="are not the sample's 4 token ids"):
        completed_sample().append_output(make_output(prompt_ids=(256, 97, 98, 3)))


def test_an_aborted_turn_fails_the_record_and_ends_it():
    aborted = FinishReason("abort", message="paused")
    first = completed_sample()
    failed = first.append_output(make_output(prompt_ids=first.token_ids, finish_reason=aborted))
    assert (failed.outcome, failed.outcome_detail) == (Outcome.ABORTED, "paused")
    assert (failed.num_loss_tokens, len(failed)) == (0, 6)
    with pytest.raises(
        DataError, match=r"has failed .aborted: paused.* cannot have a further turn"
    ):
        failed.append_output(make_output(prompt_ids=failed.token_ids))


def test_a_further_turn_opens_the_reward():
    first = completed_sample().scored(1.0, {"format": 1.0})
    second = first.append_output(make_output(prompt_ids=first.token_ids))
    assert (second.reward, second.reward_parts) == (None, {})


def test_routes_of_a_token_are_those_of_the_pass_that_a_draw_needed():
    """The last sampled token of a turn is computed first for the next turn."""
    first = Sample.from_output(routed(), group_id="g", temperature=1.0)
    assert first.routes.ravel().tolist() == [0, 1, 2, 0]
    asked = first.append([10, 11], source=Source.ENVIRONMENT)
    assert asked.routes.ravel().tolist() == [0, 1, 2, 0, 0, 0]
    second = asked.append_output(routed(prompt_ids=asked.token_ids, first=20))
    assert second.routes.ravel().tolist() == [0, 1, 2, 23, 24, 25, 26, 0]


def test_a_record_has_all_routes_or_none():
    dense, mixture = completed_sample(), Sample.from_output(routed(), group_id="g", temperature=1.0)
    with pytest.raises(DataError, match="only this turn has routes; sample every turn"):
        dense.append_output(routed(prompt_ids=dense.token_ids))
    with pytest.raises(DataError, match="only an earlier turn has routes"):
        mixture.append_output(make_output(prompt_ids=mixture.token_ids))
    with pytest.raises(DataError, match="2 rows of routes do not fit 4 tokens"):
        Sample.from_output(
            replace(routed(), routes=np.zeros((2, 1, 1), np.uint8)), group_id="g", temperature=1.0
        )
    two_layers = routed(prompt_ids=mixture.token_ids)
    two_layers = replace(two_layers, routes=two_layers.routes.repeat(2, axis=1))
    with pytest.raises(DataError, match="routes cannot be joined"):
        mixture.append_output(two_layers)


def test_a_column_that_nobody_declared_is_refused():
    with pytest.raises(TypeError, match=r"no columns \['rewards'\]; use \['token_ids'"):
        completed_sample().append([1], source=Source.ENVIRONMENT, rewards=[1.0])
