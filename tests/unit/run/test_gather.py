"""What a step trains on: the sampling policy's masks, choice of groups and shaping. Answers that cannot train are refused."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO

import pytest
from helpers.fake_generator import FakeGenerator
from helpers.planted_fault import assert_notices
from helpers.recorded_run import make_run
from rich.console import Console

from zerogap.algorithms import HintConfig
from zerogap.config import SamplingPolicyConfig
from zerogap.config.data import PromptConfig
from zerogap.data import PromptEncoder, PromptItem, byte_tokenizer
from zerogap.errors import DataError
from zerogap.obs import Progress, Spans, StepMetrics
from zerogap.rollout import Collector, DirectRewards, Hints, Rollouts, SingleTurn, load_rollouts
from zerogap.run.gather import CompletionGatherer, Gathered
from zerogap.run_folder import RunFolder
from zerogap.types import FinishReason, GenerateOutput, SamplingParams

TOKENIZER = byte_tokenizer()
LIMIT = 8
OVERLONG = {"buffer_tokens": 4, "penalty": 0.007}
A, END = 97, 257


class Stream:
    """Prompts p0, p1, ... in order."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, count: int) -> list[PromptItem]:
        names = [f"p{self.taken + i}" for i in range(count)]
        self.taken += count
        return [PromptItem(item_id=name, question=name) for name in names]


def gather(
    policy: dict,
    rewards: Callable[[str, int], float],
    *,
    lengths: Sequence[int] = (2, 3, 4, LIMIT),
    num_prompts: int = 2,
    hints: Hints | None = None,
) -> tuple[Gathered, dict[str, float]]:
    """A step's samples and metrics: groups of ``lengths``, a reward by (prompt, length)."""

    def complete(request: object, index: int) -> list[int]:
        return [A] * (lengths[index] - 1) + [END]

    def ended_by(output: GenerateOutput) -> GenerateOutput:
        if len(output.output_ids) == LIMIT:
            return replace(output, finish_reason=FinishReason("length"))
        return output

    def grade(completion: str, item: PromptItem, sample: object) -> float:
        return rewards(item.item_id, len(completion) + 1)

    collector = Collector(
        FakeGenerator(completion=complete, change=ended_by),
        SingleTurn(PromptEncoder(TOKENIZER, PromptConfig(chat=False)), DirectRewards(grade)),
        decode=TOKENIZER.decode,
        vocab_limit=TOKENIZER.vocab_size,
        sampling=SamplingParams(max_new_tokens=LIMIT),
        group_size=len(lengths),
        seed=0,
    )
    gatherer = CompletionGatherer(
        stream=Stream(),  # type: ignore[arg-type]
        collector=lambda: collector,
        num_prompts=num_prompts,
        group_size=len(lengths),
        policy=SamplingPolicyConfig.model_validate(policy),
        hints=hints,
        max_tokens=LIMIT,
        spans=Spans(),
        progress=Progress(Console(file=StringIO()), is_quiet=True),
    )
    metrics = StepMetrics()
    return gatherer(1, metrics), metrics.reduce()


def prompts(rollouts: Rollouts) -> list[str]:
    return [rollouts.items[group.group_id].item_id for group in rollouts.groups]


def rewards_of(rollouts: Rollouts) -> list[list[float | None]]:
    return [[sample.reward for sample in group.samples] for group in rollouts.groups]


def hopeless_first(prompt: str, length: int) -> float:
    """Nobody solves p0 and p1; of the others the shortest completion is right."""
    return float(prompt not in ("p0", "p1") and length == 2)


def test_an_overlong_penalty_is_no_signal():
    # The completion of 8 tokens is penalised, so the shaped rewards of p0 and p1 differ.
    policy = {"dynamic_sampling": {"max_rounds": 3}, "overlong": OVERLONG}

    def check(policy: dict) -> None:
        found, metrics = gather(policy, hopeless_first)
        assert prompts(found.trained) == ["p2", "p3"]
        assert metrics["rollout/num_groups_without_signal"] == 2

    check(policy)
    found, _ = gather(policy, hopeless_first)
    # Groups that train are shaped, and so are those that statistics count.
    assert rewards_of(found.trained) == [[1.0, 0.0, 0.0, -0.007]] * 2
    assert rewards_of(found.drawn)[0] == [0.0, 0.0, 0.0, -0.007]
    shaped_first = lambda p, n: hopeless_first(p, n) - 0.007 * (n == LIMIT)  # noqa: E731

    def check_shaped_first() -> None:
        found, _ = gather({"dynamic_sampling": {"max_rounds": 3}}, shaped_first)
        assert prompts(found.trained) == ["p2", "p3"]

    assert_notices("the signal of shaped rewards", check_shaped_first)


def test_if_no_group_has_a_signal_a_penalty_gives_none():
    policy = {"dynamic_sampling": {"max_rounds": 2}, "overlong": OVERLONG}
    found, _ = gather(policy, lambda *_: 0.0)
    assert prompts(found.trained) == ["p0", "p1"]
    assert rewards_of(found.trained) == [[0.0] * 4] * 2
    assert "only 0 of 2 groups have differing rewards" in found.note


def test_without_dynamic_sampling_every_group_is_shaped_and_trains():
    found, metrics = gather({"overlong": OVERLONG}, lambda *_: 0.0)
    assert rewards_of(found.trained) == [[0.0, 0.0, 0.0, -0.007]] * 2
    assert [s.reward_parts for s in found.trained.samples[3::4]] == [{"overlong": -0.007}] * 2
    assert found.note == ""
    assert metrics == {"rollout/num_rounds": 1}


def hints(max_tokens: int = 100) -> Hints:
    return Hints(
        config=HintConfig(kind="success", min_reward=0.0, template="{question}:{hint}"),
        encode=PromptEncoder(TOKENIZER, PromptConfig(chat=False)).with_hint,
        max_tokens=max_tokens,
    )


def test_a_success_is_one_of_the_task_whatever_the_policy_adds_to_rewards():
    found, metrics = gather({"overlong": OVERLONG}, lambda _, n: 0.0 if n == LIMIT else -1.0, hints=hints())  # fmt: skip
    last = found.trained.samples[3]
    assert last.reward == -0.007
    assert [s.teacher_prompt_ids is None for s in found.trained.samples] == [False] * 3 + [True] + [False] * 3 + [True]  # fmt: skip
    assert metrics["rollout/hinted_fraction"] == 6 / 8
    assert found.note == ""


def test_hints_that_do_not_fit_are_told():
    found, metrics = gather({}, lambda *_: 1.0, hints=hints(max_tokens=4))
    assert "the teacher's prompt of 8 samples is too long" in found.note
    assert metrics["rollout/hinted_fraction"] == 0.0


def test_accuracy_is_named_in_the_note():
    policy = {"dynamic_sampling": {"max_rounds": 2, "signal": "accuracy"}}
    found, _ = gather(policy, lambda _, length: 0.4 * (length == 2))
    assert "only 0 of 2 groups have right and wrong completions (rewards from 0.5" in found.note


def test_surplus_groups_are_counted_and_do_not_train():
    policy = {"dynamic_sampling": {"over_sampling": 2.5}}
    found, metrics = gather(policy, lambda prompt, length: float(length == 2 and prompt != "p1"))
    assert prompts(found.drawn) == ["p0", "p1", "p2", "p3", "p4"]
    assert prompts(found.trained) == ["p0", "p2"]
    assert prompts(found.not_trained) == ["p1", "p3", "p4"]
    assert metrics == {
        "rollout/num_rounds": 1,
        "rollout/num_groups": 5,
        "rollout/num_groups_surplus": 2,
        "rollout/num_groups_without_signal": 1,
    }


def test_truncated_completions_are_masked_before_groups_are_chosen():
    policy = {"dynamic_sampling": {"max_rounds": 2}, "truncated": "mask"}
    # p0: only truncated completions differ from others; p1: no completion ends by itself.
    found, _ = gather(policy, lambda _, length: float(length == LIMIT), lengths=(2, LIMIT))
    assert [s.num_loss_tokens for s in found.trained.samples] == [2, 0] * 2
    assert rewards_of(found.trained) == [[0.0, 1.0]] * 2
    found, _ = gather(policy, lambda *_: 0.0, lengths=(LIMIT, LIMIT))
    assert "only 0 of 2 groups" in found.note


def test_by_default_truncated_completions_train():
    found, _ = gather({}, hopeless_first)
    assert found.not_trained.groups == ()
    assert [s.num_loss_tokens for s in found.trained.samples] == [2, 3, 4, LIMIT] * 2


def test_an_answer_that_does_not_fit_the_model_is_refused_before_the_first_step(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = [{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d" * 500}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match=r"(?s)1 of 2 training prompts.*503 tokens"):
        make_run(
            tmp_path / "run", steps=2, loss__kind="sft", data__kind="jsonl", reward__kind="exact",
            data__path=str(path), data__answer_field="answer",
        )  # fmt: skip
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_groups_that_do_not_train_are_in_the_runs_folder(tmp_path):
    policy = {"sampling_policy__dynamic_sampling__over_sampling": "2.0"}
    folder = RunFolder(make_run(tmp_path / "run", steps=1, **policy))
    trained, others = (load_rollouts(f(1)) for f in (folder.rollouts, folder.not_trained))
    names = [{sample.group_id for sample in samples} for samples in (trained, others)]
    assert names[0] | names[1] == {f"train-000001-{place:04d}" for place in range(6)}
    assert not names[0] & names[1]
    # A run that trains on all that it draws has no such folder.
    assert not RunFolder(make_run(tmp_path / "plain", steps=1)).not_trained(1).exists()
