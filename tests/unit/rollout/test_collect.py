from dataclasses import replace

import numpy as np
import pytest
from helpers.chat_tokenizers import merging_tokenizer
from helpers.fake_generator import FakeGenerator
from helpers.samples import make_output

from zerogap.algorithms import group_advantages
from zerogap.config.data import PromptConfig
from zerogap.data import PromptEncoder, PromptItem, byte_tokenizer
from zerogap.errors import DataError, EngineError, GenerationFailed, RewardFailed
from zerogap.rollout import (
    Collector,
    DirectRewards,
    RewardResult,
    Rollouts,
    SingleTurn,
    run_async,
)
from zerogap.types import FinishReason, Outcome, Sample, SamplingParams, Source

TOKENIZER = byte_tokenizer()
ENCODE = PromptEncoder(TOKENIZER, PromptConfig(chat=False))
ITEMS = [PromptItem(item_id=f"i{k}", question=f"q{k}") for k in range(3)]


def count_vowels(completion, item, sample):
    return float(sum(c in "aeiou" for c in completion))


class Waiting(Collector):
    """A collector whose ``collect`` blocks."""

    def collect(self, items, **named):
        return run_async(super().collect(items, **named))


def collector(generator=None, function=count_vowels, *, environment=None, seed=0, group_size=4):
    return Waiting(
        generator or FakeGenerator(),
        environment or SingleTurn(ENCODE, DirectRewards(function)),
        decode=TOKENIZER.decode,
        vocab_limit=TOKENIZER.vocab_size,
        sampling=SamplingParams(max_new_tokens=8, temperature=0.7),
        group_size=group_size,
        seed=seed,
    )


def columns(rollouts: Rollouts):
    return [(s.rollout_id, s.token_ids.tolist(), s.reward, s.outcome) for s in rollouts.samples]


def test_each_prompt_is_a_group_of_rewarded_samples():
    rollouts = collector().collect(ITEMS, step=5)
    assert [len(g.samples) for g in rollouts.groups] == [4, 4, 4]
    for group, item in zip(rollouts.groups, ITEMS, strict=True):
        assert rollouts.items[group.group_id] is item
        for sample in group.samples:
            assert sample.token_ids[: sample.num_prompt_tokens].tolist() == [
                256,
                *item.question.encode(),
            ]
            assert sample.reward == count_vowels(sample.text, item, sample)
            assert (sample.temperature, sample.outcome) == (0.7, Outcome.COMPLETED)
    assert rollouts.outcome_counts[Outcome.COMPLETED] == 12


def test_the_same_step_draws_the_same_and_another_step_something_else():
    first, again = (columns(collector().collect(ITEMS, step=5)) for _ in range(2))
    assert first == again
    seeds = set()
    for changed in ({"step": 6}, {"step": 5, "purpose": "eval"}):
        generator = FakeGenerator()
        collector(generator).collect(ITEMS, **changed)
        seeds |= {r.sampling_params.sampling_seed for r in generator.requests}
    generator = FakeGenerator()
    collector(generator, seed=1).collect(ITEMS, step=5)
    seeds |= {r.sampling_params.sampling_seed for r in generator.requests}
    assert len(seeds) == 9
    assert not seeds & {s.turns[0].seed for s in collector().collect(ITEMS, step=5).samples}


def test_one_prompt_twice_makes_two_groups_with_different_noise():
    rollouts = collector().collect([ITEMS[0], ITEMS[0]], step=0)
    a, b = rollouts.groups
    assert a.group_id != b.group_id
    assert a.samples[0].token_ids.tolist() != b.samples[0].token_ids.tolist()


def test_the_order_in_which_outputs_arrive_changes_nothing():
    assert columns(collector(FakeGenerator(shuffle=True)).collect(ITEMS, step=1)) == columns(
        collector().collect(ITEMS, step=1)
    )


# ------------------------------------------------------------------ outcomes


def change(sibling, **fields):
    """The output of that sibling of every group, changed."""
    return lambda o: replace(o, **fields) if o.index == sibling else o


def test_an_id_that_the_tokenizer_lacks_is_tampering_and_the_group_survives():
    # NeMo RL#237: head of 320 rows, tokenizer of 259 ids, forced id 300.
    bad = change(1, output_ids=np.array([97, 300, 98, 99, 257], np.int32))
    rollouts = collector(FakeGenerator(change=bad)).collect(ITEMS, step=0)
    for group in rollouts.groups:
        outcomes = [s.outcome for s in group.samples]
        assert outcomes == [Outcome.COMPLETED, Outcome.TAMPERED, *[Outcome.COMPLETED] * 2]
        tampered = group.samples[1]
        assert (tampered.reward, tampered.num_loss_tokens) == (None, 0)
        assert "[300]" in tampered.outcome_detail
        assert 300 in tampered.token_ids
    assert rollouts.outcome_counts[Outcome.TAMPERED] == 3


def test_an_id_without_meaning_may_come_with_a_log_prob_of_none():
    fields = {
        "output_ids": np.array([300, 257], np.int32),
        "output_log_probs": np.array([-np.inf, -1], np.float32),
        "kept_log_mass": np.zeros(2, np.float32),
    }
    rollouts = collector(FakeGenerator(change=change(0, **fields))).collect(ITEMS, step=0)
    assert rollouts.groups[0].samples[0].outcome == Outcome.TAMPERED


def test_a_prompt_that_the_generator_changed_is_tampering():
    bad = change(2, prompt_ids=np.array([256, 256, 113], np.int32))
    sample = collector(FakeGenerator(change=bad)).collect(ITEMS, step=0).groups[0].samples[2]
    assert (sample.outcome, sample.reward) == (Outcome.TAMPERED, None)


def test_aborted_and_missing_completions_have_no_reward_and_train_nothing():
    def bad(output):
        if output.index == 0:
            return None
        if output.index == 1:
            return replace(output, finish_reason=FinishReason("abort", message="paused"))
        return output

    calls = []

    def reward(completion, item, sample):
        calls.append(sample.rollout_id)
        return 1.0

    rollouts = collector(FakeGenerator(change=bad), reward).collect(ITEMS, step=0)
    counts = rollouts.outcome_counts
    assert counts[Outcome.INFRASTRUCTURE_FAILED] == counts[Outcome.ABORTED] == 3
    failed = [s for s in rollouts.samples if not s.outcome.is_valid]
    assert all(s.reward is None and s.num_loss_tokens == 0 for s in failed)
    assert rollouts.groups[0].samples[1].outcome_detail == "paused"
    assert len(calls) == 6


def test_an_exception_in_the_reward_is_never_a_reward():
    def reward(completion, item, sample):
        if sample.rollout_id.endswith("/0"):
            raise OSError("no space left")
        return 1.0

    rollouts = collector(function=reward).collect(ITEMS, step=0)
    for group in rollouts.groups:
        assert [s.reward for s in group.samples] == [None, 1.0, 1.0, 1.0]
        assert group.samples[0].outcome == Outcome.VERIFIER_FAILED
        assert group.samples[0].outcome_detail.startswith("OSError: no space left (")


def test_a_failed_member_does_not_move_its_siblings_baseline():
    # OpenRLHF#1239: rewards 100 and 1, where the first has nothing to train; the second is alone.
    def bad(output):
        if output.index:
            return output
        none, empty = np.zeros(0, np.float32), np.zeros(0, np.int32)
        aborted = FinishReason("abort")
        return replace(
            output, output_ids=empty, output_log_probs=none, kept_log_mass=none,
            weight_version=empty, finish_reason=aborted,
        )  # fmt: skip

    samples = (
        collector(FakeGenerator(change=bad), lambda *_: 1.0, group_size=2)
        .collect(ITEMS[:1], step=0)
        .samples
    )
    assert [s.outcome for s in samples] == [Outcome.ABORTED, Outcome.COMPLETED]
    found = group_advantages(
        np.array([100.0, samples[1].reward]),
        [s.group_id for s in samples],
        np.array([s.outcome.is_valid for s in samples]),
    )
    assert found.advantages[1] == 0
    assert found.is_alone[1]


def test_an_exception_of_the_generator_stops_the_step():
    # NeMo RL#3589: it must never become a row with reward 0.
    class Broken(FakeGenerator):
        async def submit(self, request, *, with_progress=False):
            if request.input_ids[-1] == ord("1"):
                raise EngineError("device lost")
            async for update in super().submit(request):
                yield update

    with pytest.raises(EngineError, match="device lost"):
        collector(Broken()).collect(ITEMS, step=0)


@pytest.mark.parametrize("log_prob", [np.nan, 0.5, -np.inf])
def test_a_missing_or_impossible_log_prob_stops_the_step(log_prob):
    # Gym#1612: null log-probs must raise, and never zero the mask.
    bad = change(1, output_log_probs=np.array([-1, -1, log_prob, -1, -1], np.float32))
    with pytest.raises(DataError, match="log-prob"):
        collector(FakeGenerator(change=bad)).collect(ITEMS, step=0)


@pytest.mark.parametrize("fields", [{"rid": "stranger"}, {"index": 9}, {"index": 0}])
def test_outputs_that_were_not_requested_stop_the_step(fields):
    with pytest.raises(GenerationFailed, match="was not requested or has come back before"):
        collector(FakeGenerator(change=change(1, **fields))).collect(ITEMS, step=0)


# ------------------------------------------------------------------ masks


def test_only_sampled_tokens_train_and_the_stop_token_is_one_of_them():
    sample = collector().collect(ITEMS, step=0).samples[0]
    is_policy = sample.source == Source.POLICY
    assert (sample.loss_mask == is_policy).all()
    assert np.isnan(sample.rollout_log_probs[~is_policy]).all()
    assert sample.token_ids[-1] == 257
    assert sample.loss_mask[-1]


def test_nothing_is_added_after_a_stop_string():
    # open-instruct#1041, SkyRL#758: no end token is put after it, with or without a log-prob.
    stop = FinishReason("stop", matched="</a>")
    ids = [*b"1</a>"]
    output = make_output(output_ids=ids, finish_reason=stop, text="1")
    sample = Sample.from_output(output, group_id="g", temperature=1.0)
    assert sample.token_ids.tolist() == [256, 97, *ids]
    assert sample.num_loss_tokens == len(ids)


def test_tokens_of_the_host_never_train():
    sample = Sample.from_output(make_output(), group_id="g", temperature=1.0)
    longer = sample.append(np.array([257, 10]), source=Source.ENVIRONMENT)
    assert longer.num_loss_tokens == sample.num_loss_tokens
    assert np.isnan(longer.rollout_log_probs[-2:]).all()
    with pytest.raises(DataError, match="did not sample"):
        replace(longer, loss_mask=np.ones(len(longer), bool))


def test_a_genuine_end_trains_though_it_is_also_the_padding_id():
    # Megatron-Bridge#4660, trl#1623: pad id = end id, one in the middle and one at the end.
    output = make_output(output_ids=(97, 257, 98, 257))
    sample = Sample.from_output(output, group_id="g", temperature=1.0)
    assert sample.loss_mask.tolist() == [False, False, True, True, True, True]


def test_sampled_ids_are_kept_though_their_text_encodes_to_others():
    # trl#5224: "he" + "llo" was sampled; the tokenizer would write "hello" as one id.
    tokenizer = merging_tokenizer()
    sampled = [tokenizer.encode("he")[0], tokenizer.encode("llo")[0]]
    assert tokenizer.encode(tokenizer.decode(sampled)) == tokenizer.encode("hello") != sampled
    output = make_output(prompt_ids=(0,), output_ids=sampled, text=tokenizer.decode(sampled))
    sample = Sample.from_output(output, group_id="g", temperature=1.0)
    suffix = tokenizer.encode("lo")
    longer = sample.append(np.array(suffix), source=Source.ENVIRONMENT)
    assert longer.token_ids.tolist() == [0, *sampled, *suffix]


# ------------------------------------------------------------------ odds and ends


def test_text_is_decoded_if_the_generator_gives_none():
    generator = FakeGenerator(change=lambda o: replace(o, text=None))
    for sample in collector(generator).collect(ITEMS, step=0).samples:
        assert sample.text == TOKENIZER.decode(sample.token_ids[sample.num_prompt_tokens :])


def test_progress_counts_to_the_end():
    seen = []
    collector().collect(ITEMS, step=0, on_progress=seen.append)
    assert [(p.num_ended, p.num_samples) for p in seen] == [(k, 12) for k in range(1, 13)]


def test_parts_of_a_reward_are_kept():
    function = lambda *_: RewardResult(1.0, {"format": 0.25})  # noqa: E731
    assert collector(function=function).collect(ITEMS, step=0).samples[0].reward_parts == {
        "format": 0.25
    }


def test_a_failure_that_the_function_chose_is_a_failure():
    def reward(completion, item, sample):
        raise RewardFailed("the grader is away")

    sample = collector(function=reward).collect(ITEMS, step=0).samples[0]
    assert (sample.outcome, sample.outcome_detail) == (
        Outcome.VERIFIER_FAILED,
        "the grader is away",
    )
