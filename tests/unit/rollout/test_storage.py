import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.same_samples import assert_same
from helpers.samples import completed_sample, make_output, ragged
from safetensors.numpy import load_file, save_file

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
        replace(completed_sample().scored(1.0), teacher_prompt_ids=(256, 99, 97)),
        routed_sample(),
        routed_sample(output_ids=(1, 2, 3, 4)),
    ]  # fmt: skip


def routed_sample(output_ids=(5, 7)) -> Sample:
    """Of a mixture of experts that drew from a part of the vocabulary."""
    rows = 1 + len(output_ids)
    output = make_output(
        output_ids=output_ids,
        kept_log_mass=np.full(len(output_ids), -0.2, np.float32),
        kept_sets=ragged([[i, i + 3] for i in output_ids]),
        routes=np.arange(rows * 6, dtype=np.uint16).reshape(rows, 3, 2),
    )
    return Sample.from_output(output, group_id="r", temperature=1.0)


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
        *[{"answer": "12"}] * (len(samples) - 4),
        *[{}] * 2,
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


def test_optional_columns_are_written_for_the_samples_that_have_them(tmp_path):
    save_rollouts(tmp_path / "dense", [completed_sample()])
    assert load_file(tmp_path / "dense" / "columns.safetensors").keys() == {
        "format", "offsets", "token_ids", "source", "loss_mask", "rollout_log_probs", "kept_log_mass", "weight_version",
    }  # fmt: skip
    save_rollouts(tmp_path / "both", [completed_sample(), routed_sample()])
    columns = load_file(tmp_path / "both" / "columns.safetensors")
    assert columns["routes.samples"].tolist() == [False, True]
    assert columns["routes"].shape == (4, 3, 2)
    assert columns["kept_sets.offsets"].tolist() == [0, 0, 0, 2, 4]


def test_routes_of_two_models_are_not_saved_together(tmp_path):
    routed = routed_sample()
    other = replace(routed, routes=routed.routes.astype(np.uint8))
    with pytest.raises(DataError, match="routes cannot be joined: types or row shapes differ"):
        save_rollouts(tmp_path / "s", [routed, other])


def edit_columns(folder, **changes):
    path = folder / "columns.safetensors"
    columns = load_file(path) | changes
    save_file({name: column for name, column in columns.items() if column is not None}, path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": None}, "rollouts of format 1, but this version of zerogap reads format 2; use"),
        ({"format": np.array([3])}, "rollouts of format 3"),
        ({"token_ids": None}, "value is missing or has another type .*token_ids.*damaged"),
        ({"kept_sets.values": None}, "value is missing or has another type .*kept_sets.values"),
        ({"routes": np.zeros((3, 3, 2), np.uint16)}, "routes has 3 rows for 4 tokens"),
        ({"kept_sets.values": np.arange(5, dtype=np.int32)}, "give offsets that rise from 0 to the number of values"),
        ({"routes": np.zeros((4, 3, 2), np.int64)}, "routes has type int64, but must have one of"),
        ({"kept_sets.offsets": np.array([0, 0, 0, 3, 4])}, "kept set without the drawn token"),
    ],
)  # fmt: skip
def test_a_file_of_another_layout_is_refused(tmp_path, changes, problem):
    save_rollouts(tmp_path / "s", [completed_sample(), routed_sample()])
    edit_columns(tmp_path / "s", **changes)
    with pytest.raises(DataError, match=problem):
        load_rollouts(tmp_path / "s")
