from helpers.run_folder import evaluation_record, step_record

from zerogap.report.charts import draw_charts
from zerogap.report.data import RunData


def charts(*records):
    return {chart.title: chart for chart in draw_charts(RunData("test", {}, {}, records))}


def test_a_whole_run_has_every_curve():
    drawn = charts(
        evaluation_record(0, 0.1), step_record(1), step_record(2, eval__reward__mean=0.3)
    )
    assert list(drawn) == [
        "Reward",
        "Gap between trainer and engine",
        "Speed",
        "Time per step",
        "Completion length",
        "Entropy",
        "Gradient norm",
        "Clip fraction",
    ]
    assert [key.label for key in drawn["Reward"].keys] == ["training", "held-out"]


def test_a_metric_that_was_never_measured_has_no_curve():
    assert list(charts(evaluation_record(0, 0.1))) == ["Reward", "Time per step"]
    assert charts() == {}


def test_the_parts_of_a_step_add_up_to_its_time():
    drawn = charts(step_record(1))["Time per step"]
    assert {row["label"]: row["text"][0] for row in drawn.hover["rows"]} == {
        "generate": "6",
        "train": "3",
        "rest": "1",
    }


def test_parts_that_exceed_the_whole_by_rounding_leave_no_negative_rest():
    drawn = charts(step_record(1, step__time_s=9.0 - 1e-9))["Time per step"]
    assert drawn.hover["rows"][-1]["text"] == ["0"]


def test_parts_of_the_reward_have_a_chart_that_says_which_it_leaves_out():
    parts = {f"reward__{name}__mean": 0.5 for name in ("right", "short", "c", "d", "e", "f")}
    drawn = charts(step_record(1, **parts))["Parts of the reward"]
    assert [key.label for key in drawn.keys] == ["right", "short", "c", "d", "e"]
    assert drawn.caption.endswith("metrics.jsonl also has f.")
    assert "Parts of the reward" not in charts(step_record(1))
