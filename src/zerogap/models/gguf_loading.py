"""Tensors of a GGUF file (llama.cpp's format), dequantised to fp32 piece by piece into the fused parameters.

For some families llama.cpp stores the rows of q and k so that rope rotates neighbouring elements; Hugging Face (and
we) rotate elements j and j + H/2. This module undoes that order for the tensors that a family's ``GgufFormat`` names.

Source: ``permute`` in convert_hf_to_gguf.py of github.com/ggml-org/llama.cpp.
Letters: H head dim, O and I out and in of a projection.
"""

import torch

from zerogap.errors import ModelError
from zerogap.gguf_file import GgufFile, GgufTensor
from zerogap.models.causal_lm import CausalLM
from zerogap.models.checkpoint_tensors import check_finite, check_tensors, row_pieces
from zerogap.models.families import find_family
from zerogap.models.gguf_config import ROPE_DIVISORS
from zerogap.models.names import hf_tensors

_WHERE = "the GGUF file"


def load_gguf_tensors(model: CausalLM, file: GgufFile) -> None:
    """Fill every parameter of ``model``. Apart from the model, only a piece of one tensor is in memory at a time.

    Raises:
        ModelError: a tensor is missing, surplus, misshapen, not finite, or of a type that gguf cannot dequantise.
    """
    views = dict(hf_tensors(model))
    stored_as = find_family(model.config.family).gguf
    assert stored_as is not None, "a GGUF file of this family was opened"
    names = stored_as.tensor_names(views, model.config.num_layers)
    hf_name_of = {theirs: name for name, theirs in names.items()}
    stored = [tensor for tensor in file.tensors.values() if tensor.name != ROPE_DIVISORS]
    found = {hf_name_of.get(tensor.name, tensor.name): tensor for tensor in stored}
    check_tensors(views, {name: t.shape for name, t in found.items()}, where=_WHERE)
    for name, view in views.items():
        permuted_heads = model.config.head_dim if stored_as.is_paired(name) else None
        _copy(view, file, found[name], permuted_heads=permuted_heads)
    check_finite(views, where=_WHERE)


def _copy(
    view: torch.Tensor, file: GgufFile, tensor: GgufTensor, *, permuted_heads: int | None
) -> None:
    # A vector is one row of the file. Rows are permuted within their head, so pieces are whole heads.
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
