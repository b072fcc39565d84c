import json
from dataclasses import fields

import numpy as np
import pytest
from helpers.samples import completed_sample, make_output
from safetensors.numpy import load_file

from zerogap.errors import DataError
from zerogap.rollout import load_rollouts, save_rollouts
from zerogap.types import FinishReason, Outcome, Sample, Source


def varied_samples() -> list[Sample]:
    two_turns = (
        completed_sample("zwei\n\u2028Zeilen \N{SNOWMAN}", "h")
        .append(np.array([10, 11]), source=Source.ENVIRONMENT)
        .append(
            np.array([98]),
            source=Source.POLICY,
            finish_reason=FinishReason("length"),
            seed=7,
            loss_mask=True,
            rollout_log_probs=np.array([-1e-7]),
            kept_log_mass=np.array([-0.1]),
            weight_version=4,
        )
    )
    stop = FinishReason("stop", matched="</a>")
    truncated = make_output(output_ids=(1, 2, 3), finish_reason=FinishReason("length"))
    return [
        completed_sample().scored(0.1 + 0.2, {"format": 1 / 3}),
        two_turns.scored(-1.5),
        completed_sample().failed(Outcome.VERIFIER_FAILED, "took longer than 3 s"),
        Sample.demonstration((256, 97), (98, 257), group_id="g", rollout_id="g/chosen", reward=1.0, text="b"),
        Sample.from_output(truncated, group_id="g", temperature=0.7).scored(0.0),
        Sample.from_output(make_output(finish_reason=stop, seed=2**53 - 1), group_id="g", temperature=0.3),
    ]  # fmt: skip


def assert_same(a: Sample, b: Sample) -> None:
    for field in fields(Sample):
        ours, theirs = getattr(a, field.name), getattr(b, field.name)
        if isinstance(ours, np.ndarray):
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), field.name
        else:
            assert ours == theirs, field.name


def test_samples_come_back_equal_bit_for_bit(tmp_path):
    samples = varied_samples()
    save_rollouts(tmp_path / "step_000001", samples)
    loaded = load_rollouts(tmp_path / "step_000001")
    assert len(loaded) == len(samples)
    for ours, theirs in zip(loaded, samples, strict=True):
        assert_same(ours, theirs)


def test_no_samples_come_back_as_none(tmp_path):
    save_rollouts(tmp_path / "empty", [])
    assert load_rollouts(tmp_path / "empty") == []


def test_a_folder_is_replaced_and_nothing_else_is_left(tmp_path):
    folder = tmp_path / "step_000001"
    save_rollouts(folder, varied_samples())
    save_rollouts(folder, varied_samples()[:1])
    assert len(load_rollouts(folder)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_a_save_that_fails_leaves_the_old_folder(tmp_path):
    folder = tmp_path / "step_000001"
    save_rollouts(folder, varied_samples())
    with pytest.raises(TypeError):
        save_rollouts(folder, varied_samples()[:1], notes={"g": {"x": object()}})
    assert len(load_rollouts(folder)) == len(varied_samples())


def test_notes_and_columns_of_the_trainer_are_written_beside(tmp_path):
    samples = varied_samples()
    total = sum(map(len, samples))
    column = np.arange(total, dtype=np.float32)
    save_rollouts(
        tmp_path / "s",
        samples,
        notes={"g": {"answer": "12"}},
        trainer_columns={"old_log_probs": column},
    )
    lines = (tmp_path / "s" / "samples.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["note"] for line in lines] == [
        {"answer": "12"},
        {},
        *[{"answer": "12"}] * (len(samples) - 2),
    ]
    written = load_file(tmp_path / "s" / "trainer.safetensors")["old_log_probs"]
    assert written.tobytes() == column.tobytes()
    assert len(load_rollouts(tmp_path / "s")) == len(samples)


def test_damaged_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="no readable rollouts"):
        load_rollouts(tmp_path)
    save_rollouts(tmp_path / "s", varied_samples())
    path = tmp_path / "s" / "samples.jsonl"
    path.write_text(
        "\n".join(path.read_text(encoding="utf-8").split("\n")[:2]) + "\n", encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"samples\.jsonl has 2 samples"):
        load_rollouts(tmp_path / "s")
    path.write_text("{\n")
    with pytest.raises(DataError, match="no readable rollouts"):
        load_rollouts(tmp_path / "s")
