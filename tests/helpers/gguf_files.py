"""Writes small GGUF files the way llama.cpp's converter does: models, vocabularies, or both."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch

from zerogap.models import CausalLM, ModelConfig, hf_tensors


def write_model_gguf(
    path: Path,
    model: CausalLM,
    *,
    matrices: Sequence[str] = ("Q8_0",),
    extra: Mapping[str, torch.Tensor] | None = None,
    without: Sequence[str] = (),
    metadata: Mapping[str, object] | None = None,
) -> dict[str, torch.Tensor]:
    """Write ``model`` and return what a reader must find: the dequantised tensors by Hugging Face name.

    Args:
        matrices: quantisation types, taken in turn for the matrices; vectors stay F32.
        extra: further F32 tensors by GGUF name.
        without: Hugging Face names that are left out.
        metadata: further keys, without the architecture's prefix; None leaves a standard key out.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, config.family)
    _add_config(writer, config, dict(metadata or {}))
    architecture = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == config.family)
    names = gguf.get_tensor_name_map(architecture, config.num_layers)
    expected = {}
    for number, (hf_name, view) in enumerate(hf_tensors(model)):
        if hf_name in without:
            continue
        is_matrix = view.dim() == 2
        kind = gguf.GGMLQuantizationType[matrices[number % len(matrices)] if is_matrix else "F32"]
        stored = gguf.quantize(view.numpy(), kind)
        expected[hf_name] = torch.from_numpy(np.array(gguf.dequantize(stored, kind)))
        if config.family == "llama" and (".q_proj." in hf_name or ".k_proj." in hf_name):
            stored = _pairs_from_halves(stored, config.head_dim)
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(name, stored, raw_dtype=kind)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor.numpy())
    _close(writer)
    return expected


def write_vocabulary_gguf(path: Path, *, architecture: str = "llama", **tokenizer) -> Path:
    """A file of ``tokenizer.ggml.<key>`` metadata only; ``chat_template`` goes under its own key."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.context_length", 256)
    template = tokenizer.pop("chat_template", None)
    if template is not None:
        writer.add_string("tokenizer.chat_template", template)
    for key, value in tokenizer.items():
        _add(writer, f"tokenizer.ggml.{key}", value)
    _close(writer)
    return path


def _add_config(writer: gguf.GGUFWriter, config: ModelConfig, extra: dict[str, object]) -> None:
    standard: dict[str, object] = {
        "block_count": config.num_layers,
        "context_length": config.max_positions,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    for key, value in (standard | extra).items():
        if value is not None:
            _add(writer, f"{config.family}.{key}", value)
    # transformers converts nothing without a vocabulary of the model's size.
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(config.vocab_size)])
    for name, token_id in (("bos", config.bos_token_id), ("padding", config.pad_token_id)):
        if token_id is not None:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    for name, token_id in zip(("eos", "eot", "eom"), config.eos_token_ids, strict=False):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def _pairs_from_halves(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """llama.cpp's row order: within a head, element j of the first half beside element j of the second."""
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
