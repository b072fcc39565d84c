import json

import pytest
from helpers.tiny_models import tiny_model

from zerogap.errors import ModelError
from zerogap.models import export_hf, load_model


def test_the_folder_is_absent_when_writing_fails(tmp_path):
    def fail(folder):
        assert (folder / "model.safetensors").exists()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        export_hf(tiny_model(), tmp_path / "out" / "export", save_tokenizer=fail)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failed_replacement_leaves_the_old_export_whole(tmp_path):
    folder = export_hf(tiny_model(seed=1), tmp_path / "export")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(_):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        export_hf(tiny_model(seed=2), folder, replace=True, save_tokenizer=fail)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_replacing_leaves_nothing_of_the_old_export(tmp_path):
    folder = export_hf(tiny_model(seed=1), tmp_path / "export", max_shard_bytes=20_000)
    export_hf(tiny_model(seed=2), folder, replace=True)
    names = {path.name for path in folder.iterdir()}
    assert names == {"config.json", "generation_config.json", "model.safetensors"}
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_folder_with_content_is_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ModelError, match=r"already has content, .* choose another"):
        export_hf(tiny_model(), tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_what_a_killed_export_left_behind_does_not_disturb(tmp_path):
    leftover = tmp_path / ".export.partial"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    folder = export_hf(tiny_model(), tmp_path / "export")
    load_model(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_tokenizer_files_arrive_in_the_folder(tmp_path):
    def save(folder):
        (folder / "tokenizer.json").write_bytes(b"\x00\xff exactly")

    folder = export_hf(tiny_model(), tmp_path / "export", save_tokenizer=save)
    assert (folder / "tokenizer.json").read_bytes() == b"\x00\xff exactly"


def test_sampling_defaults_are_kept_and_special_ids_are_the_models(tmp_path):
    source = {"temperature": 0.6, "top_p": 0.9, "eos_token_id": 77}
    model = tiny_model(eos_token_ids=(2, 9))
    folder = export_hf(model, tmp_path / "export", generation=source)
    written = json.loads((folder / "generation_config.json").read_text())
    assert written == {"temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 9], "bos_token_id": 1}
    assert load_model(folder).generation == written
