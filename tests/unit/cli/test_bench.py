"""``zerogap bench`` on a fake benchmark: its options, output, files and comparison."""

import json
from types import SimpleNamespace

import pytest

import zerogap_bench
from zerogap.cli import main
from zerogap.errors import ModelError
from zerogap_bench import BenchOptions, RunShape
from zerogap_bench.tables import Table

NUMBERS = {"shape": "8x8x16", "share_of_limit": 0.8, "peak_rss_gb": 1.0}


@pytest.fixture
def played(monkeypatch):
    """``asked`` holds (name, options); ``fails_with`` is raised in the middle of measuring."""
    state = SimpleNamespace(
        asked=[], fails_with=None, failures=[], commit="0123456789ab", share=0.8
    )

    class Played:
        failures = state.failures

        def measure(self, say):
            say("measuring")
            if state.fails_with:
                raise state.fails_with

        def tables(self):
            return [Table("What was measured", [{"tokens/s": 123.0}])]

        def report(self):
            shapes = {"shapes": [NUMBERS | {"share_of_limit": state.share}]}
            return {
                "benchmark": state.asked[-1][0], "device": "CPU", "num_cores": 2, "threads": 2, "memory_gb": 1,
                "versions": {}, "commit": state.commit, "date": "2026-11-30", "config": {}, "kernels": "native",
                "rollout": shapes, "step": shapes,
            }  # fmt: skip

    def build(name, options):
        state.asked.append((name, options))
        return Played()

    monkeypatch.setattr(zerogap_bench, "build_benchmark", build)
    return state


def test_a_question_gets_its_options(played, capsys):
    assert main(["bench", "rollout", "--shapes", "2x3x4", "--peers", "transformers", "--threads", "2"]) == 0  # fmt: skip
    expected = BenchOptions(shapes=(RunShape(2, 3, 4),), peers=("transformers",), threads=2)
    assert played.asked == [("rollout", expected)]
    shown = capsys.readouterr()
    assert "What was measured" in shown.out
    assert shown.err == "measuring\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either a question"),
        (["step", "--suite", "cpu"], "give either a question"),
        (["rollout", "--rows", "8"], "--rows has no effect on rollout; it belongs to limit, cpu"),
        (["limit", "--shapes", "1x1x1"], "--shapes has no effect on limit"),
        (["rollout", "--record"], "--record has no effect on rollout"),
        (["rollout", "--vllm-python", "no/such/python"], "no such file"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_cure(played, capsys, arguments, message):
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert played.asked == []


@pytest.mark.parametrize(
    "arguments",
    [["--peers", "sglang"], ["--repeats", "0"], ["--threads", "two"], ["--shapes", "8x8"]],
)
def test_a_value_that_cannot_be_is_refused_by_its_flag(played, capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "rollout", *arguments])
    assert arguments[0] in capsys.readouterr().err


def test_ctrl_c_shows_and_writes_what_was_measured(played, capsys, tmp_path):
    played.fails_with = KeyboardInterrupt()
    assert main(["bench", "--suite", "cpu", "--json", str(tmp_path / "found.json")]) == 130
    assert "What was measured" in capsys.readouterr().out
    assert json.loads((tmp_path / "found.json").read_text())["benchmark"] == "cpu"


def test_an_error_shows_what_was_measured_as_well(played, capsys):
    played.fails_with = ModelError("no such model")
    assert main(["bench", "rollout"]) == 2
    shown = capsys.readouterr()
    assert "What was measured" in shown.out
    assert "no such model" in shown.err


def test_a_peer_that_failed_is_an_exit_code(played):
    played.failures.append("vLLM failed: no memory")
    assert main(["bench", "rollout"]) == 1


def test_a_check_finds_a_planted_regression(played, capsys, tmp_path):
    check = ["bench", "--suite", "check", "--baselines", str(tmp_path)]
    assert main([*check, "--record"]) == 0
    assert "recorded" in capsys.readouterr().out
    assert main(check) == 0
    assert "none of 4 numbers beyond" in capsys.readouterr().out
    played.share = 0.6
    assert main(check) == 1
    shown = capsys.readouterr().out
    assert "2 of 4 numbers beyond" in shown
    assert shown.count("WORSE") == 2


def test_a_check_without_a_baseline_is_no_success(played, capsys, tmp_path):
    assert main(["bench", "--suite", "check", "--baselines", str(tmp_path)]) == 2
    assert "--record" in capsys.readouterr().err


def test_a_dirty_checkout_is_not_recorded(played, capsys, tmp_path):
    played.commit = "0123456789ab-dirty"
    assert main(["bench", "--suite", "cpu", "--record", "--baselines", str(tmp_path)]) == 2
    assert "commit first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
