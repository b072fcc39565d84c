import pytest
import torch
from helpers.tiny_engine import tiny_engine
from helpers.tiny_models import tiny_model

from zerogap.errors import CheckpointError, WeightSyncError
from zerogap.run.checkpoint import RunState, load_checkpoint, save_checkpoint
from zerogap.run_folder import list_checkpoints
from zerogap.weights import (
    CopiedWeights,
    Publisher,
    SharedWeights,
    WeightHistory,
    WeightVersions,
    digest_weights,
    weight_fingerprint,
)


def save(folder, model, step, keep=2):
    state = RunState(
        step=step,
        weight_version=step,
        fingerprint=weight_fingerprint(model),
        prompts={"position": 3},
    )
    return save_checkpoint(folder, model, {"num_steps": torch.tensor(step)}, state, keep=keep)


def test_what_is_saved_comes_back(tmp_path):
    model, other = tiny_model(seed=1), tiny_model(seed=2)
    path = save(tmp_path, model, 4)
    trainer_state, state = load_checkpoint(path, other)
    assert weight_fingerprint(other) == weight_fingerprint(model)
    assert (state.step, state.prompts, int(trainer_state["num_steps"])) == (4, {"position": 3}, 4)


def test_only_the_newest_are_kept(tmp_path):
    model = tiny_model()
    for step in (1, 2, 3):
        save(tmp_path, model, step)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["step_000002", "step_000003"]


def test_a_half_written_one_does_not_count_and_is_cleared_away(tmp_path):
    partial = tmp_path / ".step_000009.partial"
    partial.mkdir()
    (partial / "state.json").write_text("{}")
    assert list_checkpoints(tmp_path) == []
    save(tmp_path, tiny_model(), 1)
    assert not partial.exists()


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, tiny_model(seed=1), 1)
    path = save(tmp_path, tiny_model(seed=2), 1)
    model = tiny_model(seed=3)
    load_checkpoint(path, model)
    assert weight_fingerprint(model) == weight_fingerprint(tiny_model(seed=2))


def test_a_missing_file_is_an_error_that_names_the_folder(tmp_path):
    path = save(tmp_path, tiny_model(), 1)
    (path / "trainer.safetensors").unlink()
    with pytest.raises(CheckpointError, match="step_000001 cannot be read"):
        load_checkpoint(path, tiny_model())


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path):
    path = save(tmp_path, tiny_model(), 1)
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-3] ^= 4
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="fingerprint"):
        load_checkpoint(path, tiny_model())


def test_another_architecture_is_refused_by_tensor_name(tmp_path):
    path = save(tmp_path, tiny_model("llama"), 1)
    with pytest.raises(CheckpointError, match=r"q_norm"):
        load_checkpoint(path, tiny_model("qwen3"))


def test_older_versions_that_will_be_served_come_back_with_what_they_stand_for(tmp_path):
    history, versions = WeightHistory(3), WeightVersions()
    for version in (2, 3, 4):
        model = tiny_model(seed=version)
        history.remember(version, model)
        versions.record(version, weight_fingerprint(model))
    state = RunState(
        step=4,
        weight_version=4,
        fingerprint=weight_fingerprint(model),
        prompts={},
        versions=versions.state_dict(),
    )
    path = save_checkpoint(tmp_path, model, {}, state, keep=1, history=history)
    again, resumed, known = tiny_model(seed=9), WeightHistory(3), WeightVersions()
    _, state = load_checkpoint(path, again, history=resumed)
    known.load_state_dict(state.versions)
    assert resumed.versions == (2, 3)
    assert weight_fingerprint(again) == known.digest_of(4)
    for version in resumed.versions:
        assert digest_weights(resumed.weights(version)).hex == known.digest_of(version)
    engine = tiny_engine(tiny_model(seed=8))
    Publisher(CopiedWeights(again, resumed, lag=2), engine, known).publish(4)
    assert engine.weight_version == 2
    assert engine.digest().hex == known.digest_of(2)


@pytest.mark.parametrize("name", ["model", "trainer", "weights_000002"])
def test_a_file_that_was_cut_off_is_an_error_that_says_what_to_do(tmp_path, name):
    model, history = tiny_model(), WeightHistory(2)
    history.remember(2, model)
    state = RunState(step=3, weight_version=3, fingerprint=weight_fingerprint(model), prompts={})
    path = save_checkpoint(tmp_path, model, {}, state, keep=1, history=history)
    content = (path / f"{name}.safetensors").read_bytes()
    (path / f"{name}.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"cannot be read .* to go on from the one before"):
        load_checkpoint(path, tiny_model(), history=WeightHistory(2))


def test_another_version_under_a_number_that_the_run_knows_is_not_served_after_a_resume():
    versions = WeightVersions()
    versions.record(4, weight_fingerprint(tiny_model(seed=4)))
    model = tiny_model(seed=5)
    with pytest.raises(WeightSyncError, match="version 4 was published with digest"):
        Publisher(SharedWeights(model), tiny_engine(model), versions).publish(4)
