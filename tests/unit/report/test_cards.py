import numpy as np
from helpers.run_folder import kept_sample
from helpers.samples import make_output

from zerogap.report.cards import build_cards, describe_ranking
from zerogap.report.rollouts import KeptRollout, rank
from zerogap.types import FinishReason, Outcome, Source


def kept(sample, *, step=1):
    return KeptRollout(step, sample, sample.rollout_log_probs, {})


def only_card(sample):
    (cards,) = build_cards(rank([kept(sample)]), str)
    return cards.cards[0]


def test_a_card_tells_reward_parts_outcome_and_how_it_finished():
    reason = FinishReason("stop", "</answer>")
    card = only_card(kept_sample([5, 6], reward=0.5, finish_reason=reason, seed=17))
    assert (card.reward, card.reward_parts) == ("0.500", [("correct", "0.500")])
    assert (card.outcome, card.gap, card.gap_style) == ("completed", "0.0", "gap-zero")
    facts = dict(card.facts)
    assert facts["finish"] == "stop at '</answer>'"
    assert (facts["tokens"], facts["weight version"], facts["seed"]) == ("3 + 2", "0", "17")


def test_a_card_tells_the_reference_answer():
    sample = kept_sample([5])
    note = {"question": "2+2?", "answer": 4, "hint": None}
    rollout = KeptRollout(1, sample, sample.rollout_log_probs, note)
    (cards,) = build_cards(rank([rollout]), str)
    assert [name for name, _ in cards.cards[0].facts[:2]] == ["answer", "finish"]
    assert cards.cards[0].facts[0] == ("answer", "4")


def test_a_failed_card_has_no_reward_and_says_what_failed():
    sample = kept_sample([5]).failed(Outcome.VERIFIER_FAILED, "TimeoutError: 10 s\x1b[31m")
    card = only_card(sample)
    assert (card.reward, card.reward_parts) == (None, [])
    assert (card.outcome, card.is_valid) == ("verifier failed", False)
    assert card.detail == "TimeoutError: 10 s⟨U+001B⟩[31m"


def test_a_stop_id_and_a_length_limit_read_differently():
    stop = only_card(kept_sample([5], finish_reason=FinishReason("stop", 151643)))
    length = only_card(kept_sample([5], finish_reason=FinishReason("length")))
    assert dict(stop.facts)["finish"] == "stop at id 151643"
    assert dict(length.facts)["finish"] == "length"


def test_every_turn_tells_its_own_versions_seed_and_end():
    first = kept_sample([5, 6], finish_reason=FinishReason("stop", "</call>"), seed=3)
    asked = first.append([8, 9, 10], source=Source.ENVIRONMENT)
    second = make_output(
        prompt_ids=asked.token_ids,
        weight_version=np.array([4, 6]),
        finish_reason=FinishReason("length"),
        seed=9,
    )
    facts = only_card(asked.append_output(second).scored(1.0)).facts
    assert [fact for fact in facts if fact[0] != "temperature"] == [
        ("turn 1: finish", "stop at '</call>'"),
        ("turn 1: weight version", "0"),
        ("turn 1: seed", "3"),
        ("turn 2: finish", "length"),
        ("turn 2: weight version", "4 to 6"),
        ("turn 2: seed", "9"),
        ("tokens", "3 + 4, and 3 of the environment"),
    ]


def test_headings_without_cards_are_left_out():
    ranked = rank([kept(kept_sample([5], index=i, reward=float(i))) for i in range(2)])
    assert [(one.heading, len(one.cards)) for one in build_cards(ranked, str)] == [
        ("Best", 1),
        ("Worst", 1),
    ]


def test_the_ranking_says_where_it_comes_from():
    scored = [kept(kept_sample([5], index=i, reward=float(i)), step=i + 1) for i in range(2)]
    text = describe_ranking(rank(scored))
    assert "From steps 1 to 2: 2 scored rollouts, with rewards from 0 to 1" in text
    failed = kept_sample([5]).failed(Outcome.ABORTED, "stopped")
    assert "no rollout has a reward" in describe_ranking(rank([kept(failed)]))
