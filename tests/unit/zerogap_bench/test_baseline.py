"""Planted regressions are found, and a number that cannot be compared is a failure."""

import json
from copy import deepcopy

import pytest

from zerogap.errors import BenchmarkError
from zerogap_bench.baseline import (
    baseline_path,
    build_baseline,
    check_numbers,
    compare,
    comparison_table,
    load_baseline,
)

REPORT = {
    "benchmark": "check",
    "device": "Some CPU (R) 3000",
    "num_cores": 2,
    "threads": 2,
    "memory_gb": 24.0,
    "versions": {},
    "commit": "0123456789ab",
    "date": "2026-11-30",
    "config": {},
    "kernels": "native",
    "rollout": {
        "shapes": [
            {
                "shape": "1x1x32",
                "share_of_limit": 5.0,
                "peak_rss_gb": 1.0,
                "ratio_to_transformers": 2.0,
                "decoding": {"share_of_read": 0.8},
            },
            {
                "shape": "8x8x16",
                "share_of_limit": 0.8,
                "peak_rss_gb": 1.0,
                "ratio_to_transformers": 5.0,
                "decoding": None,
            },
        ]
    },
    "step": {"shapes": [{"shape": "8x8x16", "share_of_limit": 0.7, "peak_rss_gb": 3.0}]},
}


def worse_than_baseline(report: dict) -> list[str]:
    found = compare(build_baseline(REPORT), check_numbers(report))
    return [comparison.name for comparison in found if comparison.is_worse]


def changed(question: str, index: int, name: str, factor: float) -> dict:
    report = deepcopy(REPORT)
    result = report[question]["shapes"][index]
    holder = result if name in result else result["decoding"]
    holder[name] *= factor
    return report


def test_the_same_numbers_are_no_regression():
    assert worse_than_baseline(REPORT) == []


@pytest.mark.parametrize(
    ("question", "index", "name", "factor"),
    [
        ("rollout", 1, "ratio_to_transformers", 0.8),
        ("rollout", 1, "share_of_limit", 0.8),
        ("rollout", 0, "share_of_read", 0.8),
        ("step", 0, "share_of_limit", 0.8),
        ("step", 0, "peak_rss_gb", 1.2),
    ],
)
def test_a_planted_regression_is_found(question: str, index: int, name: str, factor: float):
    shape = REPORT[question]["shapes"][index]["shape"]
    assert worse_than_baseline(changed(question, index, name, factor)) == [f"{question}/{shape}/{name}"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "factor"),
    [("share_of_limit", 1.5), ("share_of_limit", 0.95), ("peak_rss_gb", 0.5), ("peak_rss_gb", 1.05)],
)  # fmt: skip
def test_better_or_a_little_worse_is_no_regression(name: str, factor: float):
    assert worse_than_baseline(changed("step", 0, name, factor)) == []


def test_what_was_not_measured_counts_as_worse():
    report = deepcopy(REPORT)
    del report["rollout"]["shapes"][1]["ratio_to_transformers"]
    assert worse_than_baseline(report) == ["rollout/8x8x16/ratio_to_transformers"]


def test_a_single_sequence_is_not_judged_by_its_matrix_products():
    assert "rollout/1x1x32/share_of_limit" not in check_numbers(REPORT)


def test_the_files_own_tolerances_count():
    baseline = build_baseline(REPORT)
    baseline["numbers"]["step/8x8x16/share_of_limit"]["tolerance"] = 0.5
    found = compare(baseline, check_numbers(changed("step", 0, "share_of_limit", 0.6)))
    assert not any(comparison.is_worse for comparison in found)


def test_the_table_says_what_moved_too_far(tmp_path):
    found = compare(build_baseline(REPORT), check_numbers(changed("step", 0, "share_of_limit", 0.5)))  # fmt: skip
    lines = comparison_table(found, tmp_path / "check.json", "0123").lines()
    (worse,) = [line for line in lines if "WORSE" in line]
    assert worse.split()[:2] == ["step/8x8x16/share_of_limit", "0.7"]
    assert "-50.0%" in worse


@pytest.mark.parametrize("commit", [None, "0123456789ab-dirty"])
def test_what_nobody_could_measure_again_is_not_recorded(commit):
    with pytest.raises(BenchmarkError, match="cannot be reproduced"):
        build_baseline(REPORT | {"commit": commit})


def test_a_baseline_is_written_and_read_by_processor_and_threads(tmp_path):
    path = baseline_path(tmp_path, REPORT)
    assert path.name == "check_some-cpu-r-3000_2threads.json"
    with pytest.raises(BenchmarkError, match="no baseline for this processor with 2 threads"):
        load_baseline(tmp_path, REPORT)
    path.write_text(json.dumps(build_baseline(REPORT)))
    assert load_baseline(tmp_path, REPORT) == build_baseline(REPORT)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"numbers": {"a": 1}}', '{"numbers": {"a": {"value": 1, "tolerance": 0.1, "better": "up"}}}'],
)  # fmt: skip
def test_what_is_no_baseline_is_refused(tmp_path, content):
    baseline_path(tmp_path, REPORT).write_text(content)
    with pytest.raises(BenchmarkError, match="is not a baseline"):
        load_baseline(tmp_path, REPORT)
