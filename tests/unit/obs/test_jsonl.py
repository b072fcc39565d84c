import json

import pytest
from helpers.file_limit import file_limit
from hypothesis import given
from hypothesis import strategies as st

from zerogap.errors import CheckpointError, NumericsError, RunFolderError
from zerogap.obs import JsonlFile, JsonlSink, read_jsonl


def _write(path, *steps):
    sink = JsonlSink(path)
    for step in steps:
        sink.write(step, step, {"reward/mean": step / 2})
    sink.close()


def test_one_object_a_step_and_the_step_comes_first(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, 1, 2)
    first, second = path.read_text().splitlines()
    assert first == '{"step": 1, "weight_version": 1, "reward/mean": 0.5}'
    assert json.loads(second)["step"] == 2


def test_resuming_drops_a_torn_line_and_the_steps_that_are_done_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    _write(path, 0, 1, 2, 3, 4)
    path.write_bytes(path.read_bytes()[:-7])
    sink = JsonlSink(path, resumed_step=2)
    sink.write(3, 3, {"reward/mean": 9.0})
    sink.close()
    assert [(r["step"], r["reward/mean"]) for r in read_jsonl(path)] == [
        (0, 0),
        (1, 0.5),
        (2, 1),
        (3, 9),
    ]


@given(cut=st.integers(0, 200), resumed_step=st.integers(0, 5))
def test_a_file_cut_at_any_byte_continues_as_if_it_had_not_been(
    tmp_path_factory, cut, resumed_step
):
    folder = tmp_path_factory.mktemp("run")
    _write(folder / "whole", 1, 2, 3, 4)
    whole = (folder / "whole").read_bytes()
    (folder / "cut").write_bytes(whole[:cut])
    JsonlFile(folder / "cut", keep_until_step=resumed_step).close()
    kept = [record["step"] for record in read_jsonl(folder / "cut")]
    assert kept == [
        step for step in (1, 2, 3, 4)[: whole[:cut].count(b"\n")] if step <= resumed_step
    ]
    assert whole.startswith((folder / "cut").read_bytes())


def test_lines_without_a_step_are_kept(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"span": "a"}\n{"span": "b", "step": 3}\n')
    JsonlFile(path, keep_until_step=2).close()
    assert read_jsonl(path) == [{"span": "a"}]


def test_a_last_line_of_garbage_is_torn_and_one_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\x00\n')
    assert read_jsonl(path) == [{"step": 1}]
    path.write_bytes(b'{"step": 1}\n\x00\x00\n{"step": 2}\n')
    with pytest.raises(CheckpointError, match="line 2: not JSON"):
        JsonlFile(path)


def test_what_is_not_finite_is_refused_and_leaves_no_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with JsonlFile(path) as file, pytest.raises(NumericsError, match="NaN or infinity"):
        file.write({"step": 1, "x": float("inf")})
    assert path.read_bytes() == b""


def test_text_stays_readable(tmp_path):
    with JsonlFile(tmp_path / "texts.jsonl") as file:
        file.write({"text": "näïve\r\n\u2028 ✓"})
    assert read_jsonl(tmp_path / "texts.jsonl") == [{"text": "näïve\r\n\u2028 ✓"}]
    assert "näïve" in (tmp_path / "texts.jsonl").read_text()


def test_a_line_that_does_not_fit_on_the_disk_is_an_error_and_leaves_a_file_that_can_be_continued(
    tmp_path,
):
    path = tmp_path / "x.jsonl"
    with JsonlFile(path) as file:
        file.write({"step": 1})
        with file_limit(20), pytest.raises(RunFolderError, match=r"x.jsonl cannot be written \(File too large\)"):  # fmt: skip
            file.write({"step": 2, "text": "long" * 9})
    assert read_jsonl(path) == [{"step": 1}]
    with JsonlFile(path) as file:
        file.write({"step": 2})
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]
