"""Exports a model as a Hugging Face folder, which transformers and other tools load.

The folder is complete or absent: it is written under a temporary name and renamed. Weights are stored in the model's
precision, which loses nothing, so logits after a reload have the same bits.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from zerogap.errors import ModelError
from zerogap.models.causal_lm import CausalLM
from zerogap.models.hf_config import config_to_hf, special_ids_to_hf
from zerogap.models.names import hf_tensors
from zerogap.models.safetensors_loading import INDEX_FILE, SINGLE_FILE
from zerogap.obs import building
from zerogap.tensor_file import save_tensors

MAX_SHARD_BYTES = 5 * 10**9
"""Larger models are split into several files, as transformers does."""

_STORED_AS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_Shard = dict[str, torch.Tensor]


def export_hf(
    model: CausalLM,
    folder: str | Path,
    *,
    save_tokenizer: Callable[[Path], object] | None = None,
    generation: Mapping[str, Any] | None = None,
    replace: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write weights, config.json, generation_config.json and tokenizer files; returns the folder.

    Args:
        model: the model; it is not changed.
        folder: appears when everything is written. Parents are created.
        save_tokenizer: writes the tokenizer's files into the folder it is given (``Tokenizer.save``);
            None leaves them out.
        generation: the source's generation_config.json; the model's special ids replace those in it.
        replace: whether to replace an existing folder as a whole; otherwise it must be absent or empty.
        max_shard_bytes: limit of one safetensors file; a larger tensor gets its own file.

    Raises:
        ModelError: the folder has content and may not be replaced.
    """
    folder = Path(folder)
    if not replace and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"export folder {folder} already has content, which the export would overwrite; choose another folder or pass replace=True"
        raise ModelError(msg)
    partial = folder.with_name(f".{folder.name}.partial")
    with building(partial):
        _write_weights(model, partial, max_shard_bytes)
        dtype = str(_STORED_AS[model.precision]).removeprefix("torch.")
        _write_json(partial / "config.json", config_to_hf(model.config, dtype=dtype))
        special_ids = {k: v for k, v in special_ids_to_hf(model.config).items() if v is not None}
        _write_json(partial / "generation_config.json", {**(generation or {}), **special_ids})
        if save_tokenizer is not None:
            save_tokenizer(partial)
    _move_into_place(partial, folder)
    return folder


def export_bytes(model: CausalLM) -> int:
    """Size of an export's weights."""
    return sum(view.numel() for _, view in hf_tensors(model)) * _STORED_AS[model.precision].itemsize


def _write_weights(model: CausalLM, folder: Path, max_shard_bytes: int) -> None:
    shards = list(_shards(model, max_shard_bytes))
    if len(shards) == 1:
        save_tensors(shards[0], folder / SINGLE_FILE, metadata={"format": "pt"})
        return
    weight_map = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_tensors(shard, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _shards(model: CausalLM, max_shard_bytes: int) -> Iterator[_Shard]:
    """Tensors in order, in shards of at most ``max_shard_bytes``; fp32 tensors are not copied."""
    shard: _Shard = {}
    for name, view in hf_tensors(model):
        tensor = view.to("cpu", _STORED_AS[model.precision])
        if shard and sum(t.nbytes for t in shard.values()) + tensor.nbytes > max_shard_bytes:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _move_into_place(partial: Path, folder: Path) -> None:
    replaced = folder.with_name(f".{folder.name}.replaced")
    _remove(replaced)
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    _remove(replaced)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
