import base64
import hashlib
import json
from html.parser import HTMLParser

import pytest
from helpers.run_folder import (
    evaluation_record,
    keep_rollouts,
    kept_sample,
    step_record,
    write_run,
)

from zerogap.errors import CheckpointError
from zerogap.report import write_report
from zerogap.report.tokens import FIELDS
from zerogap.types import Outcome

HOSTILE = "</span></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
VOID = {"meta", "input", "rect", "line", "path", "circle", "img", "br"}


class Page(HTMLParser):
    """The tags of a page in order, its texts, and whether every tag is closed."""

    def __init__(self, path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            self.scripts.append(data)
        elif not self._open or self._open[-1] != "style":
            self.text += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.tags)

    def styles(self, prefix):
        """Classes of all tokens that begin with ``prefix``."""
        classes = [
            attributes.get("class", "") for _, attributes in self.tags if "data-t" in attributes
        ]
        return [style for text in classes for style in text.split() if style.startswith(prefix)]


def decode(token_id):
    return f" t{token_id}"


def report(run_dir, decode_token=decode):
    return Page(write_report(run_dir, decode_token=decode_token))


def whole_run(run_dir, *, gap=0.0, **sections):
    records = [
        evaluation_record(0, 0.25),
        step_record(1),
        step_record(2, eval__reward__mean=0.75, gap__total__max=gap),
    ]
    write_run(run_dir, records, run={"dir": "runs/x", "steps": 2}, **sections)
    samples = [kept_sample([5, 6, 7], index=i, reward=i / 8) for i in range(8)]
    keep_rollouts(run_dir, 2, samples, gap=gap)
    return run_dir


def test_a_whole_run_shows_everything(tmp_path):
    page = report(whole_run(tmp_path / "my-run"))
    assert ("h1", {}) in page.tags
    for words in (
        "my-run",
        "Held-out reward rose from 0.250 to 0.750 over 2 steps in 25.0 s.",
        "the gap was 0.0 at every step",
        "Gap between trainer and engine",
        "excluded: invalid outcome",
        "run.steps",
        "packages.torch",
        "Best",
        "Worst",
        " t1 t2 t3",
        "reward 0.875",
    ):
        assert words in page.text
    assert page.count("svg") == 8
    assert "Left out of this page" not in page.text


def test_equal_log_probs_and_the_smallest_difference_have_different_colours(tmp_path):
    assert set(report(whole_run(tmp_path / "a")).styles("gap-")) == {"gap-zero"}
    assert set(report(whole_run(tmp_path / "b", gap=6e-8)).styles("gap-")) == {"gap-0"}


def test_the_page_loads_nothing_and_runs_no_script_but_its_own(tmp_path):
    page = report(whole_run(tmp_path))
    assert not [
        name
        for _, attributes in page.tags
        for name in attributes
        if name in ("src", "href", "srcset")
    ]
    assert "url(" not in page.source
    assert "@import" not in page.source
    (policy,) = [
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    own = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{own}'" in policy


def test_hostile_text_stays_text(tmp_path):
    tame = report(whole_run(tmp_path / "tame"))
    run_dir = whole_run(tmp_path / "hostile", prompt={"template": f"{HOSTILE}{{question}}"})
    (run_dir / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
    sample = kept_sample([5], group_id=HOSTILE, reward_parts={HOSTILE: 1.0})
    keep_rollouts(run_dir, 3, [sample] * 10)
    page = report(run_dir, lambda token_id: HOSTILE)
    assert page.text.count(HOSTILE) > 20
    assert page.count("script") == tame.count("script")
    assert page.count("img") == 0
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


def test_hostile_text_of_a_failure_stays_text(tmp_path):
    run_dir = whole_run(tmp_path)
    scripts = report(run_dir).count("script")
    failed = kept_sample(
        [5], outcome_detail=HOSTILE, reward=None, outcome=Outcome.INFRASTRUCTURE_FAILED
    )
    keep_rollouts(run_dir, 3, [failed])
    page = report(run_dir)
    assert HOSTILE in page.text
    assert page.count("script") == scripts


@pytest.mark.parametrize(
    "records",
    [
        [],
        [evaluation_record(0, 0.5)],
        [step_record(1)],
        [step_record(1, reward__mean=None, gap__total__max=None, gap__total__mean=None)],
        [evaluation_record(0, 0.5), step_record(1), step_record(2)],
        [{"step": 1, "weight_version": 1}],
    ],
    ids=["nothing", "evaluation", "one step", "no reward", "killed", "bare"],
)
def test_a_run_in_any_state_gives_a_page(tmp_path, records):
    page = report(write_run(tmp_path, records))
    assert "steps were recorded:" in page.text or "No step has been recorded" in page.text
    assert page.count("article") == 0


def test_files_that_are_missing_leave_their_part_out(tmp_path):
    run_dir = whole_run(tmp_path)
    (run_dir / "config.json").unlink()
    (run_dir / "environment.json").unlink()
    assert "Settings" not in report(run_dir).text
    (run_dir / "rollouts" / "step_000002" / "trainer.safetensors").unlink()
    page = report(run_dir)
    assert set(page.styles("gap-")) == {"gap-none"}
    assert "step_000002 has no trainer.safetensors" in page.text


def test_only_the_runs_folder_is_read(tmp_path, monkeypatch):
    before = report(whole_run(tmp_path / "first-place")).source
    moved = (tmp_path / "first-place").rename(tmp_path / "second-place")
    monkeypatch.chdir(tmp_path)
    assert report(moved).source == before.replace("first-place", "second-place")


def test_the_script_finds_a_name_for_every_field_of_a_token(tmp_path):
    page = report(whole_run(tmp_path))
    (names,) = [json.loads(a["data-fields"]) for _, a in page.tags if "data-fields" in a]
    assert tuple(names) == FIELDS
    details = [a["data-t"].split("|") for _, a in page.tags if "data-t" in a]
    assert {len(values) for values in details} == {len(FIELDS)}


def test_writing_again_replaces_the_page_and_leaves_nothing_behind(tmp_path):
    run_dir = whole_run(tmp_path)
    files = {path.name for path in run_dir.iterdir()}
    first = report(run_dir).source
    assert report(run_dir).source == first
    assert {path.name for path in run_dir.iterdir()} == files | {"report.html"}


def test_text_without_utf8_does_not_stop_the_page(tmp_path):
    run_dir = whole_run(tmp_path)
    (run_dir / "environment.json").write_text(r'{"processor": "\ud800"}')
    assert "processor" in report(run_dir).text


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="not the folder of a run"):
        write_report(tmp_path, decode_token=decode)
