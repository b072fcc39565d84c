"""Writes zerogap's weights as an fp32 GGUF file for llama.cpp, without a tokenizer, because only ids are exchanged."""

from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch

from zerogap.errors import BenchmarkError
from zerogap.models import CausalLM, ModelConfig, find_family, hf_tensors
from zerogap.models.family import GgufFormat


def write_gguf(model: CausalLM, path: Path) -> None:
    """Write all tensors and the sizes that llama.cpp needs.

    Args:
        model: its weights are read, never changed.
        path: of the file; replaced if it exists.

    Raises:
        BenchmarkError: the model scales its rotary positions, or its family has no known GGUF format.
    """
    config = model.config
    if config.rope_scaling is not None:
        msg = f"llama.cpp cannot run this model: its rotary positions are scaled ({config.rope_scaling}), and the export does not support that; leave llama.cpp out of --peers"
        raise BenchmarkError(msg)
    stored_as = find_family(config.family).gguf
    if stored_as is None:
        msg = f"llama.cpp cannot run this model: no GGUF format is known for the family {config.family}; leave llama.cpp out of --peers"
        raise BenchmarkError(msg)
    writer = gguf.GGUFWriter(path, stored_as.name)
    _write_sizes(writer, config)
    for name, values in _tensors(model, stored_as):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _tensors(model: CausalLM, stored_as: GgufFormat) -> Iterator[tuple[str, np.ndarray]]:
    views = dict(hf_tensors(model))
    for name, theirs in stored_as.tensor_names(views, model.config.num_layers).items():
        paired = stored_as.is_paired(name)
        values = _pairs_from_halves(views[name], model.config.head_dim) if paired else views[name]
        yield theirs, values.contiguous().numpy()


def _pairs_from_halves(weight_OI: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of each head to llama.cpp's order (0, H/2, 1, H/2 + 1, ...), in which rope rotates neighbours."""
    halves = weight_OI.unflatten(0, (-1, 2, head_dim // 2))
    return halves.transpose(1, 2).flatten(0, 2)
