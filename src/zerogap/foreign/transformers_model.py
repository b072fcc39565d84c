"""A transformers model of the policy's architecture, and our weights in it: names and layout are translated here."""

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
    """One of the policy's architecture, with weights that mean nothing.

    Args:
        config: of the policy.
        dtype: in which transformers computes.
    """
    # Imported here: it takes seconds, and only this engine needs it.
    from transformers import AutoConfig, AutoModelForCausalLM

    hf_config = AutoConfig.for_model(**config_to_hf(config))
    torch_dtype = torch.float32 if dtype == "fp32" else torch.bfloat16
    # It draws weights that nobody will use.
    with torch.random.fork_rng(devices=[]):
        return AutoModelForCausalLM.from_config(hf_config, dtype=torch_dtype).eval()


@torch.no_grad()
def write_weights(
    model: nn.Module, config: ModelConfig, weights: Iterable[tuple[str, Tensor]]
) -> None:
    """Copy tensors, by the names of our model, into transformers'; each is cut into those that it has.

    Raises:
        WeightSyncError: a tensor has no counterpart of its shape.
    """
    theirs = dict(model.named_parameters())
    parts: dict[str, list[TensorRows]] = {}
    for rows in tensor_rows(config):
        parts.setdefault(rows.parameter, []).append(rows)
    for name, tensor in weights:
        places = parts.get(name, [])
        shapes = [theirs[rows.hf_name].shape for rows in places]
        if not places or [tensor[r.start : r.end].shape for r in places] != shapes or len(tensor) != places[-1].end:  # fmt: skip
            held = ", ".join(f"{rows.hf_name} {list(theirs[rows.hf_name].shape)}" for rows in places)  # fmt: skip
            msg = f"transformers' model cannot take {name} {list(tensor.shape)}: it has {held or 'no such tensor'}; it was built for another policy"
            raise WeightSyncError(msg)
        for rows in places:
            theirs[rows.hf_name].copy_(tensor[rows.start : rows.end])


def digest_parameters(model: nn.Module, config: ModelConfig) -> WeightDigest:
    """Of what transformers reads, one of our tensors put together after the other; fp32."""
    theirs = dict(model.named_parameters())
    parts: dict[str, list[Tensor]] = {}
    for rows in tensor_rows(config):
        parts.setdefault(rows.parameter, []).append(theirs[rows.hf_name].detach())
    digests = {
        name: digest_tensor(torch.cat([tensor.float() for tensor in tensors]))
        for name, tensors in parts.items()
    }
    return WeightDigest(digests)
