import pytest
import torch
from helpers.tiny_models import tiny_model

from zerogap.errors import CheckpointError
from zerogap.run.checkpoint import RunState, list_checkpoints, load_checkpoint, save_checkpoint
from zerogap.weights import weight_fingerprint


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
