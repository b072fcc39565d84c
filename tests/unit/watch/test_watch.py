import json
import math
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerogap.config import WatchConfig
from zerogap.errors import NumericsError, RecheckError
from zerogap.watch import Watch
from zerogap.watch.hysteresis import Hysteresis, Reading

RUN = Path("runs/mine")
CALM = {
    "reward/mean": 0.5,
    "gap/total/mean": 0.0,
    "policy/entropy": 1.0,
    "train/grad_norm": 1.0,
    "rollout/truncated_fraction": 0.1,
    "group/count": 10.0,
    "group/without_signal": 2.0,
    "rollout/num_samples": 40.0,
    "rollout/failed_fraction": 0.0,
}
BAD = {
    "gap": {"gap/total/mean": 0.5, "gap/staleness/open/mean": 0.4, "gap/numbers/open/mean": 0.1},
    "entropy": {"policy/entropy": 0.1},
    "gradient": {"train/grad_norm": 50.0},
    "truncation": {"rollout/truncated_fraction": 0.9, "rollout/completion_len/mean": 31.0},
    "signal": {"group/without_signal": 10.0},
    "failures": {"rollout/failed_fraction": 0.2, "outcome/verifier_failed": 8.0},
}


def watch(**changes) -> Watch:
    return Watch(WatchConfig(**changes), RUN)


def after(watch: Watch, steps, start=1):
    """Reports of steps, each a variation of the calm one."""
    return [watch.observe(start + i, CALM | changes) for i, changes in enumerate(steps)]


def changes_of(reports):
    return [(a.kind, a.change, a.step) for report in reports for a in report.alarms]


@pytest.mark.parametrize("kind", BAD)
def test_an_alarm_goes_on_after_patience_and_off_after_patience(kind):
    steps = [{}] * 6 + [BAD[kind]] * 3 + [{}] * 4
    reports = after(watch(patience=3), steps)
    assert changes_of(reports) == [(kind, "on", 9), (kind, "off", 12)]
    assert [r.metrics[f"alarm/{kind}"] for r in reports] == [0.0] * 8 + [1.0] * 3 + [0.0] * 2


@pytest.mark.parametrize("kind", BAD)
def test_one_good_step_in_between_starts_the_count_again(kind):
    reports = after(watch(patience=2), [{}] * 6 + [BAD[kind], {}, BAD[kind], {}, BAD[kind]])
    assert changes_of(reports) == []


def test_a_policy_that_has_learned_may_be_certain_of_what_it_knows():
    certain = {"policy/entropy": 0.1}
    learned = certain | {"reward/mean": 0.9}
    assert changes_of(after(watch(), [{}] * 5 + [learned] * 5)) == []
    assert changes_of(after(watch(), [{}] * 5 + [certain] * 2)) == [("entropy", "on", 7)]
    gone = {"policy/entropy": 0.01, "reward/mean": 0.9}
    assert changes_of(after(watch(), [{}] * 5 + [gone] * 2)) == [("entropy", "on", 7)]


def test_between_nine_tenths_and_the_limit_an_alarm_stays_what_it_is():
    near = {"gap/total/mean": 0.19}
    assert changes_of(after(watch(), [near] * 5)) == []
    reports = after(watch(), [BAD["gap"]] * 2 + [near] * 5 + [{"gap/total/mean": 0.18}] * 2)
    assert changes_of(reports) == [("gap", "on", 2), ("gap", "off", 9)]


def test_an_alarm_says_first_sign_step_suspect_and_command():
    *_, report = after(watch(patience=3), [{}] + [BAD["gap"]] * 3)
    (alarm,) = report.alarms
    assert (alarm.first_step, alarm.first_value, alarm.step) == (2, 0.5, 4)
    assert alarm.suspect.startswith("staleness (gap/staleness/open/mean = 0.4 nats)")
    assert alarm.command == "zerogap audit runs/mine --step 2"
    line = alarm.line()
    assert all(part in line for part in ("gap/total/mean = 0.5", "limit 0.2", "first sign at step 2", alarm.suspect, alarm.command))  # fmt: skip
    assert json.loads(json.dumps(alarm.to_json()))["kind"] == "gap"


def test_limits_of_the_run_itself_wait_for_its_first_steps():
    kinds = {"entropy", "gradient"}
    bad = {"policy/entropy": 0.01, "train/grad_norm": 1e6}
    early = [{}] * 3 + [bad] * 2
    assert not kinds & {kind for kind, _, _ in changes_of(after(watch(), early))}
    assert kinds == {kind for kind, _, _ in changes_of(after(watch(), [{}] * 5 + [bad] * 2))}


def test_a_run_that_starts_cut_off_alarms_when_it_gets_worse():
    usual, worse = ({"rollout/truncated_fraction": share} for share in (0.6, 0.76))
    assert changes_of(after(watch(), [usual] * 12)) == []
    assert changes_of(after(watch(), [usual] * 5 + [worse] * 2)) == [("truncation", "on", 7)]


def test_steps_without_gradient_do_not_make_the_next_one_a_spike():
    reports = after(watch(), [{"train/grad_norm": 0.0}] * 20 + [{}] * 4)
    assert changes_of(reports) == []


def test_what_was_not_measured_changes_nothing():
    unmeasured = {k: v for k, v in CALM.items() if not k.startswith("gap/")}
    mine = watch(patience=2)
    mine.observe(1, CALM | BAD["gap"])
    assert mine.observe(2, unmeasured).alarms == ()
    assert changes_of([mine.observe(3, CALM | BAD["gap"])]) == [("gap", "on", 3)]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_alarms_at_once_and_once(value):
    mine = watch(patience=3)
    reports = [mine.observe(1, CALM | {"train/loss": value}), mine.observe(2, CALM | {"train/loss": value})]  # fmt: skip
    assert changes_of(reports) == [("numerics", "on", 1)]
    (alarm,) = reports[0].alarms
    assert (alarm.metric, alarm.value) == ("train/loss", None)
    json.dumps(alarm.to_json(), allow_nan=False)
    assert changes_of(after(mine, [{}] * 3, start=3)) == [("numerics", "off", 5)]


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (NumericsError("the gradient is infinite"), "a number is not finite"),
        (RecheckError("rollout g0/0, position 5: -1.0 and -2.0"), "a log-prob has two values"),
    ],
)
def test_a_failed_step_alarms_in_the_words_of_its_error(error, what):
    (alarm,) = watch().failed(4, error).alarms
    assert (alarm.metric, alarm.value, alarm.suspect) == (what, None, str(error))
    assert f"differ: {what} at step 4; suspect: {error}; look closer: zerogap capsule" in alarm.line()  # fmt: skip


def test_a_second_number_that_is_not_finite_starts_the_calm_steps_again():
    reports = after(watch(patience=2), [{"train/loss": math.nan}, {}, {"train/loss": math.inf}, {}, {}])  # fmt: skip
    assert changes_of(reports) == [("numerics", "on", 1), ("numerics", "off", 5)]


@pytest.mark.parametrize("kind", BAD)
def test_a_resumed_run_is_held_against_the_limits_that_it_had(kind):
    before, later = watch(patience=2), watch(patience=2)
    after(before, [{}] * 6)
    later.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert changes_of(after(later, [BAD[kind]] * 2, start=7)) == [(kind, "on", 8)]


def test_the_alarm_of_failed_rewards_says_how_many_and_why():
    *_, report = after(watch(), [BAD["failures"]] * 2)
    (alarm,) = report.alarms
    assert "8 of 40 samples are verifier_failed: the reward function raised" in alarm.suspect
    assert "rollout/failed_fraction = 0.2 (limit 0.1)" in alarm.line()


def test_the_command_of_failed_rewards_counts_their_reasons(tmp_path):
    run = tmp_path / "my run"
    (folder := run / "rollouts" / "step_000001").mkdir(parents=True)
    details = ["", "slow", "slow", "KeyError: 'a'"]
    lines = [json.dumps({"text": "x", "outcome_detail": one}) for one in details]
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
    mine = Watch(WatchConfig(patience=1), run)
    (alarm,) = mine.observe(1, CALM | BAD["failures"]).alarms
    done = subprocess.run(["/bin/sh", "-c", alarm.command], capture_output=True, text=True, check=True)  # fmt: skip
    found = [line.split('"outcome_detail": "') for line in done.stdout.splitlines()]
    assert sorted((reason, int(count)) for count, reason in found) == [("KeyError: 'a'", 1), ("slow", 2)]  # fmt: skip


def test_a_checkpoint_from_before_an_alarm_existed_can_be_continued():
    before, later = watch(patience=2), watch(patience=2)
    after(before, [BAD["gap"]] * 2)
    state = json.loads(json.dumps(before.state_dict()))
    del state["alarms"]["failures"]
    later.load_state_dict(state)
    assert changes_of(after(later, [BAD["failures"] | BAD["gap"]] * 2, start=3)) == [("failures", "on", 4)]  # fmt: skip


def test_an_exception_names_its_message():
    report = watch(stop=True).failed(7, NumericsError("rollout g/3: log-prob is nan"))
    (alarm,) = report.alarms
    assert "rollout g/3" in alarm.line()
    assert alarm.command == "zerogap capsule runs/mine --step 7 step_7.zip"
    assert report.should_stop


def test_stop_is_asked_for_when_an_alarm_goes_on_and_only_then():
    steps = [BAD["gap"]] * 3 + [{}] * 2
    assert [r.should_stop for r in after(watch(stop=True), steps)] == [False, True, False, False, False]  # fmt: skip
    assert not any(r.should_stop for r in after(watch(), steps))


_STEPS = st.lists(
    st.sampled_from([{}, {"train/loss": math.nan}, {"gap/total/mean": 0.19}, *BAD.values()]), max_size=40
)  # fmt: skip


@given(_STEPS, st.integers(0, 40), st.integers(1, 3))
def test_resumed_is_uninterrupted(steps, cut, patience):
    whole = after(watch(patience=patience), steps)
    before, later = watch(patience=patience), watch(patience=patience)
    first = after(before, steps[:cut])
    later.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert first + after(later, steps[cut:], start=1 + min(cut, len(steps))) == whole


@given(st.lists(st.floats(0, 2), max_size=60), st.integers(1, 4), st.booleans())
def test_hysteresis_turns_only_after_a_row_of_its_own(values, patience, below):
    """An oracle without counters: the last ``patience`` readings since the last turn."""
    alarm, is_on, row = Hysteresis(), False, []
    for step, value in enumerate(values):
        reading = Reading(value, 1.0, is_collapse_below=below)
        row.append(reading.is_calm if is_on else reading.is_beyond)
        expected = len(row) >= patience and all(row[-patience:])
        if expected:
            is_on, row = not is_on, []
        change = alarm.observe(step, reading, patience)
        assert (change is not None) == expected
        assert alarm.is_on == is_on
