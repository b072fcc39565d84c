"""Tensors of a GGUF file (llama.cpp's format), dequantised to fp32 and copied into the fused parameters.

llama.cpp's ``llama`` architecture stores the rows of q and k so that rope turns neighbouring elements;
Hugging Face's (and ours) turns elements j and j + H/2. The order is undone here; the qwen architectures
are stored as they are.

Source: ``permute`` in convert_hf_to_gguf.py of github.com/ggml-org/llama.cpp.
Letters: H head dim, O and I out and in of a projection.
"""

from collections.abc import Iterable

import gguf
import numpy as np
import torch

from zerogap.errors import ModelError
from zerogap.models.causal_lm import CausalLM
from zerogap.models.config import ModelConfig
from zerogap.models.gguf_config import ROPE_DIVISORS, tensor_shape
from zerogap.models.names import hf_tensors
from zerogap.models.tensor_check import check_finite, check_tensors

_ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
_WHERE = "the GGUF file"


def load_gguf_tensors(model: CausalLM, reader: gguf.GGUFReader) -> None:
    """Fill every parameter of ``model``, one tensor at a time.

    Raises:
        ModelError: tensors missing, surplus, misshapen, not finite, or of a type gguf cannot dequantise.
    """
    views = dict(hf_tensors(model))
    hf_name_of = _hf_names(model.config, views)
    found = {hf_name_of.get(t.name, t.name): t for t in reader.tensors if t.name != ROPE_DIVISORS}
    expected = {name: tuple(view.shape) for name, view in views.items()}
    check_tensors(expected, {name: tensor_shape(t) for name, t in found.items()}, where=_WHERE)
    for name, view in views.items():
        values = _dequantise(found[name])
        is_permuted = model.config.family == "llama" and (".q_proj." in name or ".k_proj." in name)
        view.copy_(_halves_from_pairs(values, model.config.head_dim) if is_permuted else values)
    check_finite(views.items(), where=_WHERE)


def _dequantise(tensor: gguf.ReaderTensor) -> torch.Tensor:
    try:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        msg = f"{_WHERE} stores {tensor.name} as {tensor.tensor_type.name}, which cannot be dequantised; use another quantisation"
        raise ModelError(msg) from error
    # F32 comes back as the read-only mapping itself, which torch would warn about.
    return torch.from_numpy(np.require(values, requirements="W"))


def _halves_from_pairs(weight_OI: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head from llama.cpp's order (0, H/2, 1, H/2 + 1, ...) to (0, 1, 2, ...)."""
    pairs = weight_OI.unflatten(0, (-1, head_dim // 2, 2))
    return pairs.transpose(1, 2).flatten(0, 2)


def _hf_names(config: ModelConfig, hf_names: Iterable[str]) -> dict[str, str]:
    """GGUF tensor name to Hugging Face name, by the gguf package's own table."""
    table = gguf.get_tensor_name_map(_ARCHITECTURES[config.family], config.num_layers)
    pairs = ((table.get_name(name, try_suffixes=(".weight", ".bias")), name) for name in hf_names)
    return {theirs: name for theirs, name in pairs if theirs is not None}
