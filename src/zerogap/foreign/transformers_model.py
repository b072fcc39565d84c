"""A transformers model of the policy's architecture; translates our weights to its names and layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from zerogap.errors import WeightSyncError
from zerogap.models import ModelConfig, Precision, config_to_hf
from zerogap.models.names import TensorRows, tensor_rows
from zerogap.weights import WeightDigest, digest_tensor


def build_model(config: ModelConfig, dtype: Precision) -> Any:  # noqa: ANN401 - transformers' own class
    """A transformers model of the policy's architecture that computes in ``dtype``, with meaningless weights."""
    # Imported here: it takes seconds, and only this engine needs it.
    from transformers import AutoConfig, AutoModelForCausalLM

    hf_config = AutoConfig.for_model(**config_to_hf(config))
    torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
    # from_config draws initial weights, which are never used; keep the global random stream as it was.
    with torch.random.fork_rng(devices=[]):
        return AutoModelForCausalLM.from_config(hf_config, dtype=torch_dtype).eval()


@torch.no_grad()
def write_weights(
    model: nn.Module, config: ModelConfig, weights: Iterable[tuple[str, Tensor]]
) -> None:
    """Copy tensors, given by the names of our model, into transformers' model, cut into its tensors.

    Raises:
        WeightSyncError: a tensor has no counterpart of its shape.
    """
    theirs, parts = dict(model.named_parameters()), _parts(config)
    for name, tensor in weights:
        places = parts.get(name, [])
        shapes = [theirs[rows.hf_name].shape for rows in places]
        if not places or [tensor[r.start : r.end].shape for r in places] != shapes or len(tensor) != places[-1].end:  # fmt: skip
            held = ", ".join(f"{rows.hf_name} {list(theirs[rows.hf_name].shape)}" for rows in places)  # fmt: skip
            msg = f"transformers' model cannot take {name} {list(tensor.shape)}: it has {held or 'no such tensor'}; build it from this policy's config"
            raise WeightSyncError(msg)
        for rows in places:
            theirs[rows.hf_name].copy_(tensor[rows.start : rows.end])


def digest_parameters(model: nn.Module, config: ModelConfig) -> WeightDigest:
    """Digest of transformers' weights in fp32, joined into our tensors one after the other."""
    theirs = dict(model.named_parameters())
    digests = {
        name: digest_tensor(torch.cat([theirs[rows.hf_name].detach().float() for rows in places]))
        for name, places in _parts(config).items()
    }
    return WeightDigest(digests)


def _parts(config: ModelConfig) -> dict[str, list[TensorRows]]:
    """The tensors of transformers that make up each of ours."""
    parts: dict[str, list[TensorRows]] = {}
    for rows in tensor_rows(config):
        parts.setdefault(rows.parameter, []).append(rows)
    return parts
