"""Runs whose engine and trainer disagree on purpose: the ledger names the source, and the run applies its remedies."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.recorded_run import copy_without, make_run

from zerogap.audit import audit_step
from zerogap.capsule import make_capsule
from zerogap.errors import CheckpointError, MismatchError, NumericsError, RecheckError
from zerogap.obs import GAP_SOURCES, read_jsonl
from zerogap.train import NativeTrainer
from zerogap.train.optimizer import Optimizer

pytestmark = pytest.mark.e2e

BAD = {
    "numerics": "fast",
    "model__dtype": "bf16",
    "engine__dtype": "fp32",
    "rollout__lag": "3",
    "rollout__sampling__top_p": "0.9",
}
ALONE = {
    "sampling": {"rollout__sampling__top_p": "0.9"},
    "staleness": {"rollout__lag": "3"},
    "numbers": {"numerics": "fast", "model__dtype": "bf16", "engine__dtype": "fp32"},
}
"""Each fault by itself."""
ALL = {"ledger__share": "1.0", "run__checkpoint_every": "0"}


def gaps(folder: Path, step: int) -> dict[str, float]:
    """Open mean of each source at a step."""
    line = next(one for one in read_jsonl(folder / "metrics.jsonl") if one["step"] == step)
    return {source: line[f"gap/{source}/open/mean"] for source in GAP_SOURCES}


def by_size(found: dict[str, float]) -> list[str]:
    return sorted((s for s in found if found[s] > 0), key=lambda source: -found[source])


def test_a_run_with_three_faults_names_its_sources_in_their_order(tmp_path):
    """Runs with one source each give its size. A run with all of them must find the same order and about the same sizes."""
    expected = {}
    for source, fault in ALONE.items():
        alone = gaps(make_run(tmp_path / source, steps=6, **fault, **ALL), 6)
        assert [s for s in alone if alone[s] > 0] == [source]
        expected[source] = alone[source]
    together = gaps(make_run(tmp_path / "bad", steps=6, **BAD, **ALL), 6)
    assert by_size(together) == by_size(expected)
    assert together["routing"] == together["tokens"] == 0.0
    for source, size in expected.items():
        assert size / 2 < together[source] < size * 2, source
    entries = read_jsonl(tmp_path / "bad" / "ledger.jsonl")
    assert [entry["num_unattributed"] for entry in entries] == [0] * 6
    assert entries[-1]["worst"][0]["source"] in by_size(expected)[:2]


def test_staleness_grows_to_the_lag_and_stays_there(tmp_path):
    run = make_run(tmp_path / "run", steps=6, rollout__lag="2", **ALL)
    lines = read_jsonl(run / "metrics.jsonl")
    assert [line["staleness/max"] for line in lines] == [0, 1, 2, 2, 2, 2]
    assert [line["gap/numbers/open/max"] for line in lines] == [0.0] * 6
    assert lines[0]["gap/staleness/open/max"] == 0.0
    assert all(line["gap/staleness/open/mean"] > 0 for line in lines[1:])


def test_another_implementation_differs_in_numbers_and_in_nothing_else(tmp_path):
    run = make_run(
        tmp_path / "run", steps=2, numerics="fast", engine__backend="transformers", **ALL
    )
    for step in (1, 2):
        found = gaps(run, step)
        assert 0 < found.pop("numbers") < 1e-5
        assert set(found.values()) == {0.0}


def test_bypass_mode_is_measured_all_the_same(tmp_path):
    bypass = {"train__old_log_probs": "rollout"}
    run = make_run(tmp_path / "run", steps=5, rollout__lag="3", **bypass, **ALL)
    assert gaps(run, 5)["staleness"] > 0
    exact = make_run(tmp_path / "exact", steps=2, **bypass, **ALL)
    assert set(gaps(exact, 2).values()) == {0.0}


def test_killed_and_started_again_with_old_weights_is_as_if_nothing_had_happened(tmp_path):
    lag = {"rollout__lag": "2"}
    whole = make_run(tmp_path / "whole", steps=5, **lag)
    make_run(tmp_path / "cut", steps=3, **lag)
    cut = make_run(tmp_path / "cut", steps=5, **lag)
    for name in ("ledger.jsonl", "versions.jsonl"):
        assert (cut / name).read_text() == (whole / name).read_text(), name
    model = "checkpoints/step_000005/weights/model.safetensors"
    assert (cut / model).read_bytes() == (whole / model).read_bytes()


def test_a_budget_shrinks_the_lag_until_the_gap_fits(tmp_path):
    run = make_run(
        tmp_path / "run",
        steps=14,
        rollout__lag="2",
        corrections__auto="false",
        mismatch__budget="1e-4",
        mismatch__patience="2",
        mismatch__remedies='["corrections", "staleness"]',
        **ALL,
    )
    taken = [(line["step"], line["remedy"]) for line in read_jsonl(run / "alarms.jsonl") if line["event"] == "remedy"]  # fmt: skip
    assert [remedy for _, remedy in taken] == ["corrections", "staleness", "staleness"]
    lines = read_jsonl(run / "metrics.jsonl")
    last = taken[-1][0]
    assert [line["staleness/max"] for line in lines[last:]] == [0] * (14 - last)
    assert [line["gap/total/max"] for line in lines[last:]] == [0.0] * (14 - last)
    assert lines[last - 1]["gap/total/mean"] > 1e-4


def test_steps_after_a_remedy_can_be_computed_again(tmp_path):
    """The applied remedies are recorded, so its weights can be recomputed to the bit."""
    run = make_run(
        tmp_path / "run", steps=5, rollout__lag="1", mismatch__budget="1e-4", mismatch__patience="1", **ALL
    )  # fmt: skip
    bare = copy_without(run, tmp_path / "bare", "checkpoints")
    assert audit_step(bare, step=5, quiet=True).entry.num_unattributed == 0
    versions = (bare / "versions.jsonl").read_text()
    (bare / "versions.jsonl").write_text(versions.replace('"corrections": {"weight": {}}', '"corrections": {}'))  # fmt: skip
    with pytest.raises(CheckpointError, match="fingerprint"):
        audit_step(bare, step=5, quiet=True)


def test_a_budget_does_not_hide_what_nothing_closes(tmp_path):
    with pytest.raises(MismatchError, match="sampling"):
        make_run(
            tmp_path / "run",
            steps=12,
            rollout__sampling__top_p="0.9",
            mismatch__budget="0.01",
            mismatch__patience="1",
            **ALL,
        )
    events = [line["event"] for line in read_jsonl(tmp_path / "run" / "alarms.jsonl")]
    assert events == ["stop"]
    # The last step and its metrics are saved.
    assert (tmp_path / "run" / "checkpoints" / "step_000001").exists()
    assert read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == 1
    assert "mismatch.budget" in (tmp_path / "run" / "report.html").read_text()


def test_a_remedy_survives_a_resume(tmp_path):
    budget = {"rollout__lag": "1", "mismatch__budget": "1e-4", "mismatch__patience": "1"}
    whole = make_run(tmp_path / "whole", steps=8, **budget)
    make_run(tmp_path / "cut", steps=5, **budget)
    state = tmp_path / "cut/checkpoints/step_000005/adaptations/state.json"
    assert json.loads(state.read_text())["lag"] == 0
    cut = make_run(tmp_path / "cut", steps=8, **budget)
    model = "checkpoints/step_000008/weights/model.safetensors"
    assert (cut / model).read_bytes() == (whole / model).read_bytes()


def test_an_alarm_may_stop_the_run_and_saves_it(tmp_path):
    run = make_run(
        tmp_path / "run", steps=9, rollout__sampling__top_p="0.5",
        watch__gap="0.05", watch__patience="2", watch__stop="true", run__checkpoint_every="0",
    )  # fmt: skip
    (alarm,) = read_jsonl(run / "alarms.jsonl")
    assert (alarm["kind"], alarm["step"], alarm["first_step"]) == ("gap", 2, 1)
    assert "sampling" in alarm["suspect"]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_000002"]
    assert read_jsonl(run / "metrics.jsonl")[-1]["alarm/gap"] == 1


def test_a_number_that_is_not_finite_ends_the_run_with_an_alarm_and_the_weights_before_it(
    tmp_path, monkeypatch
):
    plain = NativeTrainer.step

    def step(self, *args, **named):
        if self._num_steps == 2:
            msg = "the gradient of layers.0.qkv.weight is not finite"
            raise NumericsError(msg)
        return plain(self, *args, **named)

    monkeypatch.setattr(NativeTrainer, "step", step)
    with pytest.raises(NumericsError, match="not finite"):
        make_run(tmp_path / "run", steps=5, run__checkpoint_every="0")
    (alarm,) = read_jsonl(tmp_path / "run" / "alarms.jsonl")
    assert (alarm["kind"], alarm["step"]) == ("numerics", 3)
    assert "not finite" in (tmp_path / "run" / "report.html").read_text()
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000002"]


def test_log_probs_with_two_values_end_the_run_and_the_weights_after_them_are_not_saved(
    tmp_path, monkeypatch
):
    """The second path notices after the update, so the trainer's weights are no longer those of step 2."""
    settings = {"run__checkpoint_every": "2"}
    whole = make_run(tmp_path / "whole", steps=5, **settings)
    plain = NativeTrainer.step

    def one_ulp_off_in_step_4(self, *args, **named):
        done = plain(self, *args, **named)
        if self._num_steps != 4:
            return done
        return replace(done, old_log_probs=[np.nextafter(c, np.float32(-9)) for c in done.old_log_probs])  # fmt: skip

    with monkeypatch.context() as patched:
        patched.setattr(NativeTrainer, "step", one_ulp_off_in_step_4)
        with pytest.raises(
            RecheckError, match=r"rollout .*, position \d+: .* is -.* and -.* alone"
        ):
            make_run(tmp_path / "run", steps=5, **settings)
    (alarm,) = read_jsonl(tmp_path / "run" / "alarms.jsonl")
    assert (alarm["kind"], alarm["step"], alarm["metric"]) == ("numerics", 4, "a log-prob has two values")  # fmt: skip
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step_000002"]
    run = make_run(tmp_path / "run", steps=5, **settings)
    model = "checkpoints/step_000005/weights/model.safetensors"
    assert (run / model).read_bytes() == (whole / model).read_bytes()


@pytest.mark.parametrize(("update", "newest"), [(1, 3), (2, 2)])
def test_a_step_that_failed_is_done_again_as_if_nothing_had_happened(
    update, newest, tmp_path, monkeypatch
):
    """A failure before the first update saves the previous step; a later one saves nothing, because the weights are inconsistent."""
    settings = {
        "train__updates_per_step": "3",
        "run__checkpoint_every": "2",
        "obs__rollouts_every": "3",
    }
    whole = make_run(tmp_path / "whole", steps=5, **settings)
    plain, calls = Optimizer.update, []

    def fails_in_step_4(self, learning_rate):
        calls.append(learning_rate)
        if len(calls) == 3 * 3 + update:
            msg = "the gradient is not finite"
            raise NumericsError(msg)
        return plain(self, learning_rate)

    monkeypatch.setattr(Optimizer, "update", fails_in_step_4)
    with pytest.raises(NumericsError):
        make_run(tmp_path / "cut", steps=5, **settings)
    checkpoints = sorted((tmp_path / "cut/checkpoints").iterdir())
    assert checkpoints[-1].name == f"step_{newest:06d}"
    # The alarm's command needs the rollouts of step 4, so they are saved although they are not due.
    (alarm,) = read_jsonl(tmp_path / "cut/alarms.jsonl")
    assert "--step 4" in alarm["command"]
    assert make_capsule(tmp_path / "cut", tmp_path / "c.zip", step=4, quiet=True).header.step == 4

    cut = make_run(tmp_path / "cut", steps=5, **settings)
    model = "checkpoints/step_000005/weights/model.safetensors"
    assert (cut / model).read_bytes() == (whole / model).read_bytes()
