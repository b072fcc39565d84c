"""Weights from a Hugging Face folder: one or several safetensors files, read directly into the fused parameters.

Tensors are read a piece at a time into the rows they belong to. Nothing is memory-mapped: pages of a mapped file count
as this process's memory, so the weights would take twice their size. bf16 and fp16 become fp32 without a change of
value; other stored types are refused.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zerogap.errors import ModelError
from zerogap.models.causal_lm import CausalLM
from zerogap.models.checkpoint_tensors import check_finite, check_tensors, row_pieces
from zerogap.models.names import hf_tensors

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_STORED_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """The object in a JSON file; {} if the file is absent and not required."""
    if not path.exists() and not required:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        msg = f"{path.parent} has no {path.name}, so it is not a Hugging Face model folder; add the file or give another folder"
        raise ModelError(msg) from error
    except ValueError as error:
        msg = f"{path} is not readable as JSON ({error}); restore the file"
        raise ModelError(msg) from error
    if not isinstance(content, dict):
        msg = f"{path} holds a {type(content).__name__}, not an object; restore the file"
        raise ModelError(msg)
    return content


def load_safetensors(model: CausalLM, folder: Path) -> None:
    """Fill every parameter of ``model`` from the folder's safetensors files.

    Raises:
        ModelError: there are no weights, a file is broken, a tensor is missing, surplus, misshapen, of an unsupported
            type or not finite, or a tied head differs from the embedding. The model may then be partly filled.
    """
    views = dict(hf_tensors(model))
    found = _stored_tensors(folder)
    tied_head = found.pop(_HEAD, None) if model.config.tie_word_embeddings else None
    check_tensors(views, {name: stored.shape for name, stored in found.items()}, where=str(folder))
    _check_stored_types({name: found[name].dtype for name in views}, folder)
    for name, view in views.items():
        for target, rows in _pieces(found[name], view):
            target.copy_(rows)
    if tied_head is not None:
        _check_tied_head(tied_head, views[_EMBEDDING], folder)
    check_finite(views, where=str(folder))


@dataclass(frozen=True)
class _Stored:
    """Where and how a file stores a tensor."""

    path: Path
    shape: tuple[int, ...]
    dtype: str
    """The format's name of the type."""
    offset: int
    """Position of its first byte in the file."""


def _stored_tensors(folder: Path) -> dict[str, _Stored]:
    """Every tensor of the folder, by name."""
    found: dict[str, _Stored] = {}
    for path in _weight_files(folder):
        try:
            # Checks the header and that the file is as long as it says.
            with safe_open(path, framework="numpy"):
                stored = dict(_read_header(path))
        except (SafetensorError, OSError) as error:
            msg = f"{path} cannot be read as safetensors ({error}); it is incomplete or has another format: download it again"
            raise ModelError(msg) from error
        twice = sorted(found.keys() & stored.keys())
        if twice:
            msg = f"{folder} has tensors in more than one file: {twice}; remove the file that {INDEX_FILE} should not list"
            raise ModelError(msg)
        found |= stored
    return found


def _read_header(path: Path) -> Iterator[tuple[str, _Stored]]:
    """The tensors of a checked file, which is the header's length in 8 bytes, the header as JSON, and the data."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            offset = 8 + length + entry["data_offsets"][0]
            yield name, _Stored(path, tuple(entry["shape"]), entry["dtype"], offset)


def _pieces(stored: _Stored, view: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(rows of ``view``, the same rows of the file), piece by piece; ``view`` has the tensor's shape."""
    with stored.path.open("rb") as file:
        file.seek(stored.offset)
        for begin, end in row_pieces(view):
            target = view[begin:end]
            rows = torch.empty(target.shape, dtype=_STORED_TYPES[stored.dtype])
            num_bytes = file.readinto(rows.view(torch.uint8).numpy().data)
            if num_bytes != rows.nbytes:
                msg = f"{stored.path} became shorter while it was being read; download it again"
                raise ModelError(msg)
            yield target, rows


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX_FILE).exists():
        weight_map = read_json(folder / INDEX_FILE).get("weight_map", {})
        paths = [folder / name for name in sorted(set(weight_map.values()))]
    else:
        paths = [folder / SINGLE_FILE]
    absent = [path.name for path in paths if not path.exists()]
    if absent or not paths:
        others = sorted(
            path.name
            for path in folder.glob("*")
            if path.suffix in (".safetensors", ".bin", ".pth")
        )
        msg = (
            f"{folder} lacks weight files {absent or [INDEX_FILE + ' entries']} (it has {others}); download them again, "
            "or convert .bin weights with transformers' save_pretrained"
        )
        raise ModelError(msg)
    return paths


def _check_stored_types(types: Mapping[str, str], folder: Path) -> None:
    others = [f"{name} ({kind})" for name, kind in types.items() if kind not in _STORED_TYPES]
    if others:
        msg = f"{folder} stores {', '.join(others)}; but weights must be {', '.join(_STORED_TYPES)}; export the model dequantised"
        raise ModelError(msg)


def _check_tied_head(head: _Stored, embedding: torch.Tensor, folder: Path) -> None:
    """Raise ModelError unless a stored head equals the embedding that is used in its place."""
    is_same = head.shape == tuple(embedding.shape) and head.dtype in _STORED_TYPES
    if not is_same or not all(
        torch.equal(rows.to(mine.dtype), mine) for mine, rows in _pieces(head, embedding)
    ):
        msg = (
            f"{folder}: config.json has tie_word_embeddings = true, but {_HEAD} differs from {_EMBEDDING}; "
            "set tie_word_embeddings = false to use both"
        )
        raise ModelError(msg)
