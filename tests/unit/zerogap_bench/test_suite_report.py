from pathlib import Path

from helpers.planted_fault import planted_fault

from zerogap_bench.options import BenchOptions
from zerogap_bench.shapes import RunShape
from zerogap_bench.suite import build_benchmark


def test_a_report_says_what_was_asked_and_not_where_files_lie():
    options = BenchOptions(
        shapes=(RunShape(1, 2, 3),), vllm_python=Path("/home/somebody/bin/python")
    )
    config = build_benchmark("limit", options).report()["config"]
    assert config["shapes"] == ["1x2x3"]
    assert config["vllm_python"] == "python"
    with planted_fault("the whole path"):
        assert "somebody" in str(config)
