"""A side in another interpreter; here a small script in the same one."""

import os
import sys
import time
from pathlib import Path

import pytest

from zerogap.errors import BenchmarkError
from zerogap_bench.peers import read_measured
from zerogap_bench.script_side import ScriptSide, parse_reply

SCRIPT = """
import json, os, sys
print("a library talks", file=sys.stderr)
for line in sys.stdin:
    request = json.loads(line)
    arguments = request["arguments"]
    if request["method"] == "die":
        print("no memory left", file=sys.stderr)
        sys.exit(3)
    if request["method"] == "fail":
        print(json.dumps({"error": "ValueError: no such model"}), flush=True)
    elif request["method"] == "chat":
        print("hello", flush=True)
    else:
        print(json.dumps({"result": {"pid": os.getpid(), **arguments}}), flush=True)
"""


@pytest.fixture
def side(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with ScriptSide("a peer", Path(sys.executable), script) as side:
        yield side


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_call_gets_its_result(side):
    assert side.call("echo", a=1, b=[2, 3]) == {"pid": side._process.pid, "a": 1, "b": [2, 3]}
    assert side.call("echo", a=2)["a"] == 2


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs /proc")
def test_it_stands_still_between_calls(side):
    pid = side.call("echo")["pid"]
    while (
        state_of(pid) != "T"
    ):  # a stop is asked for and arrives; the test's timeout ends this if it never does
        time.sleep(0.01)
    assert side.call("echo")["pid"] == pid


def test_its_error_is_raised_here(side):
    with pytest.raises(BenchmarkError, match="a peer failed:\nValueError: no such model"):
        side.call("fail")


def test_its_end_is_an_error_with_its_last_words(side):
    with pytest.raises(BenchmarkError, match=r"ended without a reply[\s\S]*no memory left"):
        side.call("die")


def test_what_is_no_reply_is_an_error(side):
    with pytest.raises(BenchmarkError, match="wrote 'hello"):
        side.call("chat")


def test_leaving_it_ends_it_though_it_stands_still(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with ScriptSide("a peer", Path(sys.executable), script) as side:
        pid = side.call("echo")["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(BenchmarkError, match="cannot be run"):
        ScriptSide("a peer", tmp_path / "python", tmp_path / "script.py")


@pytest.mark.parametrize("line", ["[1]", '{"other": 1}', "null"])
def test_a_reply_has_a_result_or_an_error(line: str):
    with pytest.raises(BenchmarkError, match="a reply must have a result or an error"):
        parse_reply("a peer", line)


def test_a_run_is_read_from_a_reply():
    found = read_measured({"seconds": 2.0, "others_load": 0.1, "peak_rss_gb": 3.0})
    assert (found.seconds, found.others_load, found.peak_rss_gb) == (2.0, 0.1, 3.0)


@pytest.mark.parametrize("reply", [None, {"seconds": 1.0}, {"seconds": 1.0, "others_load": 0, "peak_rss_gb": 0, "x": 1}])  # fmt: skip
def test_a_run_with_other_fields_is_refused(reply: object):
    with pytest.raises(BenchmarkError, match="must"):
        read_measured(reply)
