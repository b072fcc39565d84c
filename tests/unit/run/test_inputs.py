"""A run goes on with what it has read before: for each file that a recipe names, another content is refused or said."""

import pytest
from helpers.recipes import run_config

from zerogap.errors import CheckpointError
from zerogap.run.inputs import check_inputs
from zerogap.run_folder import RunFolder

REWARD = {"kind": "import", "function": "mine_of_inputs:score"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A recipe that reads four things by path, and its folder with a checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("train.jsonl", "eval.jsonl", "model/config.json", "model/a.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"prompt": "1"}\n')
    (tmp_path / "mine_of_inputs.py").write_text("def score(*_): return 1.0\n")
    data = {"kind": "jsonl", "path": "train.jsonl", "eval_path": str(tmp_path / "eval.jsonl")}
    config = run_config(model={"path": "model"}, data=data, reward=REWARD)
    folder = RunFolder(tmp_path / "run")
    (folder.checkpoint(1)).mkdir(parents=True)
    return tmp_path, folder, config


def with_checkpoint(folder, config):
    assert check_inputs(folder, config) is None
    (folder.checkpoint(1) / "state.json").write_text("{}")


def test_the_same_files_may_go_on_from_another_place_too(files):
    path, folder, config = files
    with_checkpoint(folder, config)
    assert check_inputs(folder, config) is None
    (path / "train.jsonl").rename(path / "real.jsonl")
    (path / "train.jsonl").symlink_to("real.jsonl")
    assert check_inputs(folder, config) is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("train.jsonl", "data.path: train.jsonl"),
        ("eval.jsonl", "data.eval_path: eval.jsonl"),
        ("model/config.json", "model.path: config.json"),
        ("model/a.safetensors", "model.path: a.safetensors"),
        ("model/chat_template.jinja", "model.path: chat_template.jinja"),
    ],
)
def test_another_content_is_refused_by_key_and_file(files, name, key):
    path, folder, config = files
    with_checkpoint(folder, config)
    recorded = folder.inputs.read_bytes()
    # As many lines and bytes as before, or a file that was not there.
    (path / name).write_text('{"prompt": "2"}\n')
    with pytest.raises(CheckpointError, match=rf"{key} changed since.*; restore the files"):
        check_inputs(folder, config)
    assert folder.inputs.read_bytes() == recorded


def test_a_file_that_is_gone_is_refused(files):
    path, folder, config = files
    with_checkpoint(folder, config)
    (path / "model" / "a.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.path: a\.safetensors changed since"):
        check_inputs(folder, config)


def test_a_changed_function_is_said_once(files):
    path, folder, config = files
    with_checkpoint(folder, config)
    (path / "mine_of_inputs.py").write_text("def score(*_): return 0.5\n")
    said = check_inputs(folder, config)
    assert said is not None
    assert said.startswith("reward.function: mine_of_inputs.py changed since")
    assert check_inputs(folder, config) is None


def test_before_the_first_checkpoint_everything_may_change(files):
    path, folder, config = files
    assert check_inputs(folder, config) is None
    (path / "train.jsonl").write_text("other\n")
    assert check_inputs(folder, config) is None


@pytest.mark.parametrize("text", [None, "{"])
def test_a_checkpoint_of_nobody_knows_which_data_is_refused(files, text):
    _, folder, config = files
    with_checkpoint(folder, config)
    folder.inputs.unlink() if text is None else folder.inputs.write_text(text)
    with pytest.raises(CheckpointError, match=r"inputs.json cannot be read .* restore the file"):
        check_inputs(folder, config)
