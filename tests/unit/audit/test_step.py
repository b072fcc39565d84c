from pathlib import Path

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.recorded_run import change_column, copy_without
from helpers.tolerance import EXACT

from zerogap.audit import Audit, audit_step, describe_audit, worst_tokens
from zerogap.audit.audited import stages
from zerogap.errors import CheckpointError
from zerogap.obs import GAP_SOURCES

CHECKPOINTS = "checkpoints"


def open_max(audit: Audit) -> dict[str, float]:
    assert audit.entry.statistics is not None
    return {name: audit.entry.statistics.sources[name].open.max for name in GAP_SOURCES}


def check_all_zero(audit: Audit) -> None:
    EXACT.check(list(open_max(audit).values()), [0.0] * 5)


@pytest.mark.parametrize("removed", [(), (f"{CHECKPOINTS}/step_000001",), (CHECKPOINTS,)])
def test_an_exact_run_has_no_gap_at_any_token_whatever_checkpoints_are_left(
    recorded: Path, tmp_path: Path, removed: tuple[str, ...]
):
    folder = copy_without(recorded, tmp_path / "run", *removed)
    audit = audit_step(folder, step=2, quiet=True)
    assert (audit.entry.step, audit.entry.version) == (2, 1)
    assert audit.entry.num_tokens == audit.entry.num_audited == 12 * 8
    check_all_zero(audit)
    change_column(folder, 2, "rollout_log_probs", lower_one)
    assert_notices(
        "one log-prob changed in its last bits",
        lambda: check_all_zero(audit_step(folder, step=2, quiet=True)),
    )


AT = 5
"""A token of the first rollout: three of the prompt, then eight that were sampled."""


def lower_one(log_probs: np.ndarray) -> None:
    log_probs[AT] = np.nextafter(log_probs[AT], np.float32(-100))


def test_a_log_prob_that_was_changed_shows_as_numbers_at_that_token_and_nowhere_else(
    recorded: Path, tmp_path: Path
):
    folder = copy_without(recorded, tmp_path / "run")
    change_column(folder, 2, "rollout_log_probs", lambda column: column.__setitem__(AT, column[AT] - 0.5))  # fmt: skip
    audit = audit_step(folder, step=2, quiet=True)
    (first, *others) = worst_tokens(audit.samples, 1000)
    assert (first.audited.sample.rollout_id, first.position) == ("train-000002-0000/0", AT)
    assert first.gap == pytest.approx(0.5)
    assert first.sources["numbers"] == first.gap
    assert all(token.gap == 0 and token.sources["numbers"] == 0 for token in others)
    largest = open_max(audit)
    assert largest.pop("numbers") == pytest.approx(0.5)
    assert set(largest.values()) == {0.0}
    lines = "\n".join(describe_audit(audit, num_worst=1))
    assert f"train-000002-0000/0, position {AT}: gap 0.500" in lines
    assert "numbers +0.5" in lines


def test_the_stages_have_the_log_probs_themselves(recorded: Path):
    audit = audit_step(recorded, step=2, quiet=True)
    for audited in audit.samples:
        sample, log_probs = audited.sample, stages(audited)
        sampled = sample.loss_mask
        engine = sample.rollout_log_probs[sampled].astype(np.float64)
        EXACT.check(log_probs[:5, sampled], np.stack([engine] * 5))
        assert np.isnan(log_probs[:, ~sampled]).all()
        total = audited.attribution.total[sampled]
        EXACT.check(log_probs[5, sampled] - log_probs[0, sampled], total)


def say_version_1(versions: np.ndarray) -> None:
    versions[versions >= 0] = 1


def test_tokens_of_an_older_version_are_scored_with_its_weights(recorded: Path, tmp_path: Path):
    folder = copy_without(recorded, tmp_path / "run", CHECKPOINTS)
    change_column(folder, 4, "weight_version", say_version_1)
    audit = audit_step(folder, step=4, quiet=True)
    assert audit.entry.num_unattributed == 0
    largest = open_max(audit)
    # Version 3 sampled them: scores by version 1 differ, those by the present weights do not.
    assert largest["staleness"] > 0
    assert largest["numbers"] == pytest.approx(largest["staleness"])
    assert max(abs(t.gap) for t in worst_tokens(audit.samples, 1)) == 0


def test_tokens_whose_weights_cannot_be_had_are_counted_and_not_guessed(
    recorded: Path, tmp_path: Path
):
    removed = [f"{CHECKPOINTS}/step_000001", "rollouts/step_000001"]
    folder = copy_without(recorded, tmp_path / "run", *removed)
    change_column(folder, 4, "weight_version", say_version_1)
    audit = audit_step(folder, step=4, quiet=True)
    num_tokens = sum(int(audited.sample.loss_mask.sum()) for audited in audit.samples)
    assert (audit.entry.num_tokens, audit.entry.num_unattributed) == (0, num_tokens)
    lines = list(describe_audit(audit, num_worst=3))
    assert f"0 of {num_tokens} trained tokens" in lines[1]
    assert f"the other {num_tokens} are not available" in lines[1]


def test_the_last_step_is_audited_unless_another_is_asked_for(recorded: Path):
    audit = audit_step(recorded, quiet=True)
    assert audit.entry.step == 4
    assert audit.recorded["gap/total/mean"] == 0.0
    audited = audit.to_json(2)
    assert audited["step"] == 4
    assert audited["sources"].keys() == set(GAP_SOURCES)
    assert len(audited["worst"]) == 2


def test_a_run_that_trains_on_answers_has_no_gap_to_audit(recorded: Path, tmp_path: Path):
    folder = copy_without(recorded, tmp_path / "run")
    config = folder / "config.json"
    text = config.read_text()
    at = text.index('"loss": {')
    end = text.index("}", text.index("}", at) + 1) + 1
    config.write_text(text[:at] + '"loss": {"kind": "sft"}' + text[end:])
    with pytest.raises(CheckpointError, match=r"loss\.kind = 'sft'"):
        audit_step(folder, quiet=True)


def test_no_worst_tokens_are_shown_if_none_are_asked_for(recorded: Path):
    audit = audit_step(recorded, step=2, quiet=True)
    *_, last = (line for line in describe_audit(audit, num_worst=0) if line)
    assert last.startswith("scored by a second path: ")
    assert last.endswith(", largest difference 0.0")
