import json
from xml.etree import ElementTree

import pytest

import algorithms
from zerogap_bench.comparison import (
    FinishedRun,
    compare,
    curves_svg,
    markdown_table,
    mean_curve,
)

SHRUNK = (
    "--rollout.prompts_per_step", "4", "--rollout.group_size", "4", "--rollout.sampling.max_new_tokens", "4",
    "--model.init.num_layers", "1", "--model.init.hidden_size", "32", "--model.init.intermediate_size", "48",
)  # fmt: skip


def finished(rewards, seed=0, tokens=100, seconds=2.0, eval_reward=0.5, error=None):
    records = [
        {
            "step": step,
            "reward/mean": reward,
            "engine/num_sampled_tokens": tokens,
            "policy/entropy": 1 / step,
            "gap/total/mean": 0.0,
            "step/time_s": seconds,
        }
        for step, reward in enumerate(rewards, start=1)
    ]
    return FinishedRun(seed=seed, records=records, eval_reward=eval_reward, error=error)


def two_cases():
    return {
        "grpo": [finished([0.0] * 5 + [0.2] * 10), finished([0.0] * 5 + [0.4] * 10, seed=1)],
        "dapo": [
            finished([0.5, 0.9, 0.7], tokens=300, seconds=5.0),
            finished([0.5, 0.5, 0.5], seed=1, tokens=300, seconds=5.0),
        ],
    }


def test_numbers_are_means_over_seeds_with_the_sample_standard_deviation():
    grpo = compare(two_cases(), target=0.8)["grpo"]
    assert grpo["reward"]["mean"] == pytest.approx(0.3)
    assert grpo["reward"]["spread"] == pytest.approx(0.1 * 2**0.5)
    assert grpo["num_tokens"]["mean"] == 1500


def test_tokens_to_the_target_count_the_seeds_that_reach_it():
    numbers = compare(two_cases(), target=0.8)
    assert numbers["dapo"]["tokens_to_target"] == {"mean": 600, "num_runs": 1}
    assert numbers["grpo"]["tokens_to_target"] == {"mean": None, "num_runs": 0}


def test_a_row_a_case_and_a_dash_where_the_target_was_never_reached():
    table = markdown_table(compare(two_cases(), target=0.8), target=0.8)
    _, _, grpo, dapo = table.splitlines()
    assert grpo == "| grpo | 0.300 ± 0.141 | 0.500 ± 0.000 | - | 1,500 | 15 | 0.07 ± 0.00 | 0 | 1.00 |"  # fmt: skip
    assert "| 600 (1 of 2) |" in dapo
    assert dapo.endswith("| 2.50 |")


def test_a_failed_run_is_counted_and_in_no_mean():
    runs = [finished([0.4] * 3), finished([0.0], seed=1, error="step 2: NaN")]
    numbers = compare({"cispo": runs}, target=0.8)
    assert numbers["cispo"]["reward"] == {"mean": pytest.approx(0.4), "spread": None}
    assert "| cispo (1 of 2 failed) |" in markdown_table(numbers, target=0.8)


def test_the_mean_curve_is_where_all_seeds_have_values():
    curve = mean_curve([[(0, 0.0), (10, 1.0)], [(2, 0.2), (8, 0.8)]])
    assert (curve[0][0], curve[-1][0]) == (2, 8)
    assert [y for _, y in curve] == pytest.approx([x / 10 for x, _ in curve])


def test_curves_have_a_panel_a_case_thin_seeds_and_a_thick_mean():
    svg = curves_svg(two_cases(), title="a < b", target=0.8)
    tree = ElementTree.fromstring(svg)
    panels = tree.findall("{*}g")
    styles = [[path.get("class") for path in panel.findall("{*}path")] for panel in panels]
    assert [panel.find("{*}text").text for panel in panels] == ["grpo", "dapo"]
    assert [one.count("seed") for one in styles] == [2, 2]
    assert [one.count("mean") for one in styles] == [1, 1]
    assert [one.count("reference") for one in styles] == [0, 1]
    assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize("is_mismatched", [False, True])
@pytest.mark.parametrize("task", algorithms.TASKS)
def test_every_case_is_a_valid_run_that_draws_as_many_completions(tmp_path, task, is_mismatched):
    experiment = algorithms.Experiment(task, 30, is_mismatched, (), tmp_path)
    for case in experiment.cases:
        rollout, base = experiment.config(case, 1).rollout, experiment.base().rollout
        drawn = rollout.prompts_per_step * rollout.group_size
        assert drawn == base.prompts_per_step * base.group_size, case.name
        assert rollout.sampling == base.sampling, case.name


def test_two_presets_run_once_and_leave_a_table_numbers_and_curves(tmp_path, capsys):
    command = ["--steps", "2", "--seeds", "1", "--presets", "dapo", "--out", str(tmp_path), "--", *SHRUNK]  # fmt: skip
    assert algorithms.main(command) == 0
    first = capsys.readouterr()
    assert len(first.err.splitlines()) == 2
    cases = json.loads((tmp_path / "results.json").read_text())["cases"]
    assert list(cases) == ["grpo", "dapo"]
    assert cases["grpo"]["runs"][0]["num_tokens"] <= cases["dapo"]["runs"][0]["num_tokens"] + 32
    assert (tmp_path / "table.md").read_text() in first.out
    ElementTree.parse(tmp_path / "curves.svg")
    assert algorithms.main(command) == 0
    second = capsys.readouterr()
    assert (second.out, second.err) == (first.out, "")
    assert algorithms.main([*command, "--train.learning_rate", "1e-4"]) == 1
    assert "holds runs of other settings" in capsys.readouterr().err


def test_an_unknown_case_is_refused_with_the_known_ones(tmp_path, capsys):
    assert algorithms.main(["--presets", "gpro", "--out", str(tmp_path / "none")]) == 1
    assert "it has grpo, dr_grpo" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
