"""Weights from a Hugging Face folder: one or several safetensors files, straight into the fused parameters.

Tensors are copied one at a time from the memory-mapped file into the rows they belong to, so the weights
are never in memory twice. bf16 and fp16 become the model's dtype; every other stored type is refused.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from zerogap.errors import ModelError
from zerogap.models.causal_lm import CausalLM
from zerogap.models.names import hf_tensors
from zerogap.models.tensor_check import check_finite, check_tensors

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_STORED_TYPES = ("F32", "BF16", "F16")
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """The object in a JSON file; {} if it is not there and need not be."""
    if not path.exists() and not required:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        msg = f"{path.parent} has no {path.name}, so it is no Hugging Face model folder; add it or give another folder"
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
        ModelError: no weights, a broken file, tensors missing, surplus, misshapen, of another stored
            type or not finite, or a tied head that is not the embedding. The model is then half filled.
    """
    views = dict(hf_tensors(model))
    with contextlib.ExitStack() as stack:
        found = _open_tensors(stack, folder)
        names = set(found)
        if model.config.tie_word_embeddings and _HEAD not in views:
            names.discard(_HEAD)
        expected = {name: tuple(view.shape) for name, view in views.items()}
        shapes = {n: tuple(found[n].get_slice(n).get_shape()) for n in found if n in names}
        check_tensors(expected, shapes, where=str(folder))
        _check_stored_types(found, views, folder)
        for name, view in views.items():
            view.copy_(found[name].get_tensor(name))
        if _HEAD in found and _HEAD not in names:
            _check_tied_head(found[_HEAD].get_tensor(_HEAD), views[_EMBEDDING], folder)
    check_finite(views.items(), where=str(folder))


def _open_tensors(stack: contextlib.ExitStack, folder: Path) -> dict[str, Any]:
    """The open file that holds each tensor, by name."""
    found: dict[str, Any] = {}
    for path in _weight_files(folder):
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            msg = f"{path} cannot be read as safetensors ({error}); it is incomplete or no such file: fetch it again"
            raise ModelError(msg) from error
        twice = sorted(found.keys() & set(file.keys()))
        if twice:
            msg = f"{folder} has tensors in more than one file: {twice}; remove the file that {INDEX_FILE} should not list"
            raise ModelError(msg)
        found |= dict.fromkeys(file.keys(), file)
    return found


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
            f"{folder} lacks weight files {absent or [INDEX_FILE + ' entries']} (there are {others}); fetch them again, "
            "or convert .bin weights with transformers' save_pretrained"
        )
        raise ModelError(msg)
    return paths


def _check_stored_types(
    found: Mapping[str, Any], views: Mapping[str, torch.Tensor], folder: Path
) -> None:
    types = {name: found[name].get_slice(name).get_dtype() for name in views}
    others = [f"{name} ({kind})" for name, kind in types.items() if kind not in _STORED_TYPES]
    if others:
        msg = f"{folder} stores {', '.join(others)}; weights must be {', '.join(_STORED_TYPES)}: export it dequantised"
        raise ModelError(msg)


def _check_tied_head(head: torch.Tensor, embedding: torch.Tensor, folder: Path) -> None:
    """A stored head is harmless only if it says the same as the embedding that replaces it."""
    if head.shape != embedding.shape or not torch.equal(head.to(embedding.dtype), embedding):
        msg = (
            f"{folder}: config.json has tie_word_embeddings = true, but {_HEAD} differs from {_EMBEDDING}; "
            "set tie_word_embeddings = false to use both"
        )
        raise ModelError(msg)
