import asyncio
import functools
import subprocess
import sys

import psutil
import pytest
from helpers.reward_functions import hanging_score
from helpers.rewards import results_of
from helpers.samples import completed_sample

from zerogap.config.data import ReasoningGymData
from zerogap.config.reward import MathVerifyReward, RegexReward, TaskReward
from zerogap.data import PromptItem, PromptSets, build_prompt_sets
from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout import (
    RewardRequest,
    RewardResult,
    WorkerRewards,
    build_rewards,
    worker_rewards,
)
from zerogap.rollout.reward_source import RewardSource

MISBEHAVE = "helpers.reward_functions:misbehave"
DEADLINE_S = 3.0
"""Each hanging completion costs these tests so long; a good one takes far less, even on a busy machine."""


def request(completion, answer="12"):
    item = PromptItem(item_id="q", question="?", answer=answer)
    return RewardRequest(completion=completion, item=item, sample=completed_sample(completion))


@pytest.fixture
def workers():
    made = []

    def make(function=MISBEHAVE, *, timeout_s=20.0, num_workers=2, **options):
        made.append(
            WorkerRewards(function, timeout_s=timeout_s, num_workers=num_workers, **options)
        )
        return made[-1]

    yield make
    for rewards in made:
        rewards.close()


def pids(rewards):
    return [worker._process.pid for worker in rewards._workers]


def test_rewards_come_back_in_order(workers):
    rewards = workers("helpers.reward_functions:length")
    results = results_of(rewards, [request("a" * k) for k in range(12)])
    assert [r.value for r in results] == list(range(12))


FAILURES = {
    "raise": "ValueError: bad completion",
    "nan": "not a finite number",
    "none": "not a finite number",
    "crash": "ended its process",
    "exit": "SystemExit: no reward today (reward_functions.py, line ",
    "surrogate": "ValueError: price \\ud83d today (reward_functions.py",
    "panic": "Panic: (its text cannot be read) (reward_functions.py",
    "hang": f"took longer than {DEADLINE_S} s",
}


def test_a_failing_completion_is_a_failure_and_its_neighbours_keep_their_rewards(workers):
    completions = [c for failing in FAILURES for c in ("ok", failing)]
    results = results_of(workers(timeout_s=DEADLINE_S), [request(c) for c in completions])
    assert results[::2] == [RewardResult(1.0)] * len(FAILURES)
    for result, reason in zip(results[1::2], FAILURES.values(), strict=True):
        assert isinstance(result, RewardFailed)
        assert reason in str(result)


def test_a_stuck_process_is_killed_and_replaced(workers, monkeypatch):
    # After an answer, even one call that hangs is no reason to give up.
    monkeypatch.setattr(worker_rewards, "_MAX_LATE", 1)
    rewards = workers(timeout_s=DEADLINE_S, num_workers=1)
    stuck = pids(rewards)
    results = results_of(rewards, [request("ok"), request("hang"), request("ok")])
    assert results[0] == results[2] == RewardResult(1.0)
    assert not psutil.pid_exists(stuck[0])
    assert pids(rewards) != stuck


@pytest.mark.slow
def test_waiting_in_line_is_no_timeout(workers):
    # Eight completions in one process take longer together than the deadline of one.
    rewards = workers("helpers.reward_functions:slow", timeout_s=DEADLINE_S, num_workers=1)
    results = results_of(rewards, [request("x") for _ in range(8)])
    assert all(isinstance(r, RewardResult) for r in results)


@pytest.mark.slow
def test_a_function_that_always_hangs_is_not_waited_for_a_hundred_times(workers, monkeypatch):
    monkeypatch.setattr(worker_rewards, "_MAX_LATE", 2)
    rewards = workers(timeout_s=0.1, num_workers=1)
    *waited, last = results_of(rewards, [request("hang") for _ in range(100)])
    assert sum("not called again" not in str(result) for result in waited) == 2
    assert "took longer than 0.1 s in each of its first 2 calls, so it was" in str(last)


@pytest.mark.slow
def test_closing_ends_the_processes_and_those_only(workers):
    rewards, other = workers(), workers()
    results_of(rewards, [request("ok")] * 4)
    ours, others = pids(rewards), pids(other)
    rewards.close()
    rewards.close()
    assert not any(psutil.pid_exists(pid) for pid in ours)
    assert all(psutil.pid_exists(pid) for pid in others)
    with pytest.raises(RewardFailed, match="are closed"):
        results_of(rewards, [request("ok")])


@pytest.mark.slow
def test_an_interruption_leaves_no_process_at_work(workers, tmp_path):
    rewards = workers(num_workers=1)
    (stuck,) = pids(rewards)
    began = tmp_path / "began"

    async def interrupted():
        works, waits = (
            asyncio.create_task(rewards.reward([request(c)])) for c in (f"hang {began}", "hang")
        )
        while not began.exists():
            await asyncio.sleep(0.01)
        for task in (works, waits):
            task.cancel()
        await asyncio.gather(works, waits, return_exceptions=True)
        assert not psutil.pid_exists(stuck)

    asyncio.run(interrupted())
    assert results_of(rewards, [request("ok")]) == [RewardResult(1.0)]


# ---------------------------------------------------------------------- groups

GROUPS = "helpers.reward_functions:misbehave_in_group"


def of_group(rewards, *completions):
    """The results of one group."""
    return asyncio.run(rewards.reward([request(c) for c in completions]))


def test_a_group_function_gets_the_whole_group_and_its_results_come_back_in_order(workers):
    rewards = workers(
        "helpers.reward_functions:shortest", takes="group", params={"bonus": 0.5}, num_workers=1
    )
    assert [r.value for r in of_group(rewards, "aaa", "b", "cc", "d")] == [0, 0.5, 0, 0.5]
    assert [r.value for r in of_group(rewards, "aaa")] == [0.5]
    assert of_group(rewards) == []
    seen = workers("helpers.reward_functions:same_prompt", takes="group")
    assert [r.value for r in of_group(seen, "x", "y")] == [1, 1]


GROUP_FAILURES = {
    **FAILURES,
    "none": "",
    "nan": "",
    "short": "returned 1 rewards for a group of 3 completions; return one for each",
    "number": "takes a group, but returned 1.0, which is no list",
    "text": "takes a group, but returned 'xxx', which is no list",
}


@pytest.mark.slow
def test_a_failing_call_fails_its_group_and_no_other(workers):
    rewards = workers(GROUPS, takes="group", timeout_s=DEADLINE_S)
    failing = [first for first, reason in GROUP_FAILURES.items() if reason]

    async def together():
        groups = [[first, "b", "c"] for first in ("ok", *failing, "ok")]
        return await asyncio.gather(*(rewards.reward([request(c) for c in g]) for g in groups))

    first, *failed, last = asyncio.run(together())
    assert first == last == [RewardResult(3.0)] * 3
    for name, results in zip(failing, failed, strict=True):
        assert len(results) == 3
        assert all(isinstance(r, RewardFailed) for r in results), name
        assert GROUP_FAILURES[name] in str(results[2])


def test_a_failure_in_the_list_fails_one_sample(workers):
    rewards = workers(GROUPS, takes="group", num_workers=1)
    for first, reason in {"one fails": "unreadable", "one is nan": "not a finite number"}.items():
        one, *others = of_group(rewards, first, "b", "c")
        assert isinstance(one, RewardFailed)
        assert reason in str(one)
        assert others == [RewardResult(3.0)] * 2


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("shortest", {"takes": "completion"}, "declared as (completions, item, samples, *, bonus=1.0), which takes a group, but takes = 'completion'; remove takes"),
        ("length", {"takes": "group"}, "which takes a completion, but takes = 'group'; remove takes"),
        ("length", {"params": {"scael": 2.0}}, "it is called as (completion, item, sample, scael=2.0), but it is declared as (completion, item, sample, *, scale=1.0): got an unexpected keyword argument 'scael'; change"),
        ("no_arguments", {}, "it is declared as (), which is no known way to declare a reward function; name its parameters as one of: zerogap's (completion, item, sample); zerogap's (completions, item, samples); TRL's (completions, **columns); verl's (data_source, solution_str, ground_truth, extra_info=None)"),
        ("other_names", {}, "it is declared as (text, row, rollout), which is no known way"),
        ("keywords_only", {}, "but it is declared as (*, completion, item, sample): too many positional"),
        ("Grader", {}, "it is a class; name a function"),
        ("trl_with_column", {"columns": ("answer",)}, "nothing is given for solution; there are answer, completion_ids, completions, prompts"),
        ("trl_with_column", {"columns": ("solution",), "params": {"scale": 1}}, "the params of the recipe do not fit: got an unexpected keyword argument 'scale'"),
        ("verl_with_more", {}, "nothing is given for reward_router_address; there are data_source, extra_info, ground_truth, solution_str"),
        ("MISBEHAVE", {}, "it is 'not a function', which cannot be called; name a function"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_called_is_refused(function, options, message):
    with pytest.raises(ConfigError) as refused:
        RewardSource(function=f"helpers.reward_functions:{function}", **options).load()
    assert message in str(refused.value)


def test_a_function_in_c_is_refused_because_nothing_says_what_its_parameters_mean():
    with pytest.raises(ConfigError, match=r"written in C.*name a Python function that calls it"):
        RewardSource(function="builtins:max").load()


def test_a_function_that_cannot_be_called_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"length cannot be used.* takes a completion, but"):
        WorkerRewards(
            "helpers.reward_functions:length", takes="group", timeout_s=1.0, num_workers=1
        )


@pytest.mark.parametrize("function", ["no_such_module:f", "helpers.reward_functions:missing"])
def test_a_function_that_cannot_be_imported_is_refused_at_once(function):
    with pytest.raises(
        ConfigError, match=r"cannot be used in a worker process.*name it as module:function"
    ):
        WorkerRewards(function, timeout_s=1.0, num_workers=1)


def test_files_named_like_pythons_modules_or_ours_hide_none_of_them(tmp_path, monkeypatch, workers):
    for name in ("statistics", "json", "random", "numpy", "zerogap"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong one')")
    (tmp_path / "own_reward.py").write_text(
        "import json, random, statistics, numpy, zerogap\n"
        "def middle(completion, item, sample):\n"
        "    return statistics.median([1.0, len(completion)])\n"
    )
    monkeypatch.chdir(tmp_path)
    # As in a notebook or with python -m: the working directory comes first.
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    rewards = workers("own_reward:middle", num_workers=1)
    assert results_of(rewards, [request("abc")]) == [RewardResult(2.0)]


def test_a_module_with_the_name_of_one_of_pythons_is_told_to_take_another():
    with pytest.raises(
        ConfigError, match=r"module 'statistics' .*Python's own module.*rename yours"
    ):
        RewardSource(function="statistics:reward").load()


def test_a_pattern_that_never_ends_is_a_failure_not_a_hang():
    pattern = r"((?:[\s\S]?[\s\S]?)+)\x00END"
    config = RegexReward(kind="regex", pattern=pattern, timeout_s=DEADLINE_S)
    rewards = build_rewards(config)
    stuck, fine = results_of(rewards, [request("a" * 60), request("12\x00END")])
    rewards.close()
    assert f"took longer than {DEADLINE_S} s" in str(stuck)
    assert fine == RewardResult(1.0)


@pytest.mark.slow
def test_a_score_of_another_package_has_a_deadline():
    sets = PromptSets(
        train=[], evaluation=[], score=functools.partial(hanging_score), score_may_hang=True
    )
    rewards = build_rewards(TaskReward(kind="task", timeout_s=DEADLINE_S), sets)
    stuck, fine = results_of(rewards, [request("hang"), request("0.5")])
    rewards.close()
    assert "took longer" in str(stuck)
    assert fine == RewardResult(0.5)


def test_reasoning_gyms_score_is_computed_in_a_process_that_makes_the_data_set_again():
    pytest.importorskip("reasoning_gym")
    data = ReasoningGymData(
        kind="reasoning_gym", dataset="basic_arithmetic", size=4, eval_size=1, seed=3
    )
    sets = build_prompt_sets(data)
    assert sets.score_may_hang
    item = sets.train[2]
    rewards = build_rewards(TaskReward(kind="task"), sets)
    asked = [
        RewardRequest(completion=c, item=item, sample=completed_sample(c))
        for c in (item.answer or "", "no number")
    ]
    right, wrong = results_of(rewards, asked)
    rewards.close()
    assert right == RewardResult(1.0)
    assert wrong.value < 1


def test_what_is_recognised_is_said_of_the_users_functions_only(workers):
    named = workers("helpers.reward_functions:verl", key="reward.parts.own", timeout_s=20.0)
    assert named.describe() == [
        "reward.parts.own: helpers.reward_functions:verl has verl's (data_source, solution_str, ground_truth, extra_info=None); "
        'one call for a completion, at most 20 s; data_source is "" where the data has no such field (reward.parts.own.params.data_source sets it)'
    ]
    assert workers().describe() == []


def test_processes_end_when_their_run_is_killed():
    code = (
        f"import sys, time; sys.path[:] = {sys.path!r}\n"
        "from zerogap.rollout import WorkerRewards\n"
        "r = WorkerRewards('helpers.reward_functions:length', timeout_s=1.0, num_workers=1)\n"
        "print(r._workers[0]._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with run:
        worker = psutil.Process(int(run.stdout.readline()))
        run.kill()
    worker.wait()
    assert not worker.is_running()


# ------------------------------------------------------------------ math-verify


@pytest.fixture(scope="module")
def math():
    pytest.importorskip("math_verify")
    rewards = build_rewards(MathVerifyReward(kind="math_verify", timeout_s=5.0))
    yield rewards
    rewards.close()


@pytest.mark.parametrize(
    ("answer", "completion", "reward"),
    [
        ("1/2", "So the answer is 0.5", 1),
        (r"\frac{1}{2}", r"Thus \boxed{\frac{2}{4}}.", 1),
        ("12", "It is $13$.", 0),
        ("12", "I do not know.", 0),
        ("12", "", 0),
        ("x^2+1", "$1 + x^2$", 1),
        (r"The answer is $\sqrt{2}$", r"\boxed{2^{1/2}}", 1),
        ("(1,2)", "$(1, 2)$", 1),
        ("1,200", "1200", 1),
        ("1/2^{99}", "$1/2^{98}$", 0),
        ("1/2^{99}", r"$\frac{1}{2^{99}}$", 1),
        ("0.0000001", "$0.0000002$", 0),
        ("0.0000001", r"$\frac{1}{10^7}$", 1),
        ("0.12345678901234567890", "$0.12345678901234567891$", 0),
        ("1/3", "$0.333333$", 0),
        ("72", "$72.0$", 1),
        ("0.1+0.2", "$0.3$", 1),
        (r"\{1/2^{99}, 3\}", r"$\{1/2^{98}, 3\}$", 0),
        (r"\{1/2^{99}, 3\}", r"$\{3, 1/2^{99}\}$", 1),
        ("(1/2^{99}, 3)", "$(1/2^{98}, 3)$", 0),
        ("x = 1/2^{99}", "$1/2^{98}$", 0),
        ("x = 3", "$3$", 1),
        ("x + 1/2^{99}", "$x + 1/2^{98}$", 0),
        (r"\sqrt{2}/2^{99}", r"$\sqrt{2}/2^{98}$", 0),
        (r"\pi", "$3.141593$", 1),
        ("50", r"$50\%$", 1),
        ("0.5", r"$50\%$", 1),
        ("50", r"$60\%$", 0),
    ],
)
def test_math_is_compared_as_mathematics(math, answer, completion, reward):
    assert results_of(math, [request(completion, answer)]) == [RewardResult(reward)]


def test_a_reference_that_is_no_mathematics_is_a_failure(math):
    (result,) = results_of(math, [request("12", answer="")])
    assert "finds no mathematics" in str(result)


@pytest.mark.slow
def test_a_comparison_that_never_ends_is_a_failure_not_a_zero(math):
    tower = "$9^{9^{9^{9^{9}}}} - 9^{9^{9^{9}}}$"
    stuck, fine = results_of(math, [request(tower, answer="7"), request("7", answer="7")])
    assert "took longer" in str(stuck)
    assert fine == RewardResult(1.0)
