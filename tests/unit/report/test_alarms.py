import json
from pathlib import Path

from helpers.run_folder import step_record, write_run

from zerogap.config import MismatchConfig, WatchConfig
from zerogap.report import write_report
from zerogap.report.alarms import alarm_rows
from zerogap.report.data import RunData
from zerogap.watch import Watch
from zerogap.watch.budget import BudgetController


class Nothing:
    """Remedies that cannot be applied."""

    def why_not(self, remedy):
        return "not here"


def records(num_bad, num_calm):
    """What a run with a gap writes: through JSON, as a report reads it."""
    watch = Watch(WatchConfig(), Path("runs/x"))
    totals = [0.5] * num_bad + [0.0] * num_calm
    found = [a.to_json() for i, t in enumerate(totals, 1) for a in watch.observe(i, {"gap/total/mean": t}).alarms]  # fmt: skip
    control = BudgetController(MismatchConfig(budget=0.01, patience=num_bad))
    decisions = [
        control.observe(i, t, {"tokens": t}, Nothing(), num_tokens=1200, num_samples=4)
        for i, t in enumerate(totals, 1)
    ]
    return json.loads(json.dumps(found + [d.to_json() for d in decisions if d]))


def run_data(alarms):
    return RunData("test", {}, {}, (), tuple(alarms))


def test_an_alarm_has_its_steps_its_first_sign_and_the_command():
    alarm, stop = alarm_rows(run_data(records(3, 4)))
    assert (alarm.steps, alarm.what) == ("2 to 5", "alarm: gap")
    assert alarm.sign == "gap/total/mean 0.500 at step 1"
    assert alarm.command == "zerogap audit runs/x --step 1"
    assert (stop.steps, stop.what) == ("3", "budget: the run stops")
    assert stop.why == "mostly tokens 0.500"
    assert stop.sign.startswith("gap/total/mean 0.500 over 1,200 tokens of 4 samples, above")


def test_an_alarm_that_is_still_on_says_so():
    assert alarm_rows(run_data(records(3, 1)))[0].steps == "2 on"


def test_the_page_shows_them_and_only_if_there_are_any(tmp_path):
    run_dir = write_run(tmp_path, [step_record(1)])
    assert "Alarms" not in write_report(run_dir, decode_token=str).read_text()
    (run_dir / "alarms.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records(3, 0)))
    page = write_report(run_dir, decode_token=str).read_text()
    assert "Alarms" in page
    assert "zerogap audit runs/x --step 1" in page
