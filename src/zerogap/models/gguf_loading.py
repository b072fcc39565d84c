"""Tensors of a GGUF file (llama.cpp's format), dequantised to fp32 piece by piece into the fused parameters.

llama.cpp's ``llama`` architecture stores the rows of q and k so that rope turns neighbouring elements;
Hugging Face's (and ours) turns elements j and j + H/2. The order is undone here; the qwen architectures
are stored as they are.

Source: ``permute`` in convert_hf_to_gguf.py of github.com/ggml-org/llama.cpp.
Letters: H head dim, O and I out and in of a projection.
"""

from collections.abc import Iterable

import gguf
import torch

from zerogap.errors import ModelError
from zerogap.gguf_file import GgufFile, GgufTensor
from zerogap.models.causal_lm import CausalLM
from zerogap.models.config import ModelConfig
from zerogap.models.gguf_config import ROPE_DIVISORS
from zerogap.models.names import hf_tensors
from zerogap.models.row_pieces import row_pieces
from zerogap.models.tensor_check import check_finite, check_tensors

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
_WHERE = "the GGUF file"


def load_gguf_tensors(model: CausalLM, file: GgufFile) -> None:
    """Fill every parameter of ``model``; beside the model only a piece of one tensor is in memory.

    Raises:
        ModelError: tensors missing, surplus, misshapen, not finite, or of a type gguf cannot dequantise.
    """
    views = dict(hf_tensors(model))
    hf_name_of = _hf_names(model.config, views)
    stored = [tensor for tensor in file.tensors.values() if tensor.name != ROPE_DIVISORS]
    found = {hf_name_of.get(tensor.name, tensor.name): tensor for tensor in stored}
    expected = {name: tuple(view.shape) for name, view in views.items()}
    check_tensors(expected, {name: t.shape for name, t in found.items()}, where=_WHERE)
    for name, view in views.items():
        is_permuted = model.config.family == "llama" and (".q_proj." in name or ".k_proj." in name)
        _copy(
            view, file, found[name], permuted_heads=model.config.head_dim if is_permuted else None
        )
    check_finite(views.items(), where=_WHERE)


def _copy(
    view: torch.Tensor, file: GgufFile, tensor: GgufTensor, *, permuted_heads: int | None
) -> None:
    # A vector is one row of the file. The rows of a head are permuted among themselves: pieces are whole heads.
    whole = [(0, 1)] if view.dim() == 1 else row_pieces(view, multiple=permuted_heads or 1)
    for begin, end in whole:
        values = _dequantised(file, tensor, begin, end)
        target = view if view.dim() == 1 else view[begin:end]
        values = values[0] if view.dim() == 1 else values
        target.copy_(_halves_from_pairs(values, permuted_heads) if permuted_heads else values)


def _dequantised(file: GgufFile, tensor: GgufTensor, begin: int, end: int) -> torch.Tensor:
    try:
        return torch.from_numpy(file.rows(tensor, begin, end))
    except NotImplementedError as error:
        msg = f"{_WHERE} stores {tensor.name} as {tensor.kind.name}, which cannot be dequantised; use another quantisation"
        raise ModelError(msg) from error


def _halves_from_pairs(weight_OI: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head from llama.cpp's order (0, H/2, 1, H/2 + 1, ...) to (0, 1, 2, ...)."""
    pairs = weight_OI.unflatten(0, (-1, head_dim // 2, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _hf_names(config: ModelConfig, hf_names: Iterable[str]) -> dict[str, str]:
    """GGUF tensor name to Hugging Face name, by the gguf package's own table."""
    table = gguf.get_tensor_name_map(_ARCHITECTURES[config.family], config.num_layers)
    pairs = ((table.get_name(name, try_suffixes=(".weight", ".bias")), name) for name in hf_names)
    return {theirs: name for theirs, name in pairs if theirs is not None}
