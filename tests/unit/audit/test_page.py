import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.recorded_run import change_column, copy_without

from zerogap.audit import Audit, audit_step, page, write_audit_page

HOSTILE = "</span></script><script>alert(1)</script>"


@pytest.fixture(scope="module")
def audit(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """The audit of a step in which one log-prob was changed by a sixteenth."""
    folder = copy_without(recorded, tmp_path_factory.mktemp("audited") / "run")
    change_column(folder, 2, "rollout_log_probs", lambda column: column.__setitem__(5, column[5] - 0.0625))  # fmt: skip
    return audit_step(folder, step=2, quiet=True)


def tokens(html: str) -> list[tuple[list[str], list[str]]]:
    """(classes, fields) of every token of a completion."""
    found = re.findall(r'class="token ([^"]*)" data-t="([^"]*)"', html)
    return [(styles.split(), details.split("|")) for styles, details in found]


def test_each_token_is_coloured_by_its_gap(audit: Audit, tmp_path: Path):
    html = write_audit_page(tmp_path / "pages" / "audit.html", audit).read_text("utf-8")
    found = tokens(html)
    assert len(found) == 96
    changed = [(styles, fields) for styles, fields in found if styles[0] != "gap-zero"]
    ((styles, fields),) = changed
    assert {"gap-4", "numbers-4"} <= set(styles)
    assert fields[0] == "5"
    assert fields[2] == "policy"
    assert float(fields[3]) == 0.0625
    assert fields[-4:] == ["1", "0", "", ""]


def test_the_rollout_with_the_largest_gap_comes_first_and_the_rest_is_counted(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(page, "MAX_ROLLOUTS", 5)
    html = write_audit_page(tmp_path / "audit.html", audit).read_text("utf-8")
    titles = re.findall(r'class="id">([^<]*)<', html)
    assert len(titles) == 5
    assert titles[0] == "train-000002-0000/0"
    assert "7 more are not shown; the largest gap among them is 0.0" in html


def test_text_of_a_tokenizer_stays_text_and_only_our_script_may_run(audit: Audit, tmp_path: Path):
    path = tmp_path / "audit.html"
    plain = write_audit_page(path, audit).read_text("utf-8")
    hostile = replace(audit, decode_token=lambda token_id: HOSTILE, run=HOSTILE)
    html = write_audit_page(path, hostile).read_text("utf-8")
    assert html.count("<script") == plain.count("<script") == 1
    assert "&lt;script&gt;alert(1)" in html
    assert "default-src 'none'" in html


def test_a_page_names_every_field_of_its_tokens(audit: Audit, tmp_path: Path):
    html = write_audit_page(tmp_path / "audit.html", audit).read_text("utf-8")
    assert {len(fields) for _, fields in tokens(html)} == {len(page._FIELDS)}
