"""Maps each Hugging Face tensor to the parameter rows that hold it, one to one.

Parts fuse tensors by rows (q, k, v; gate, up), as their ``WeightSpec`` declares. A Hugging Face tensor is a run of rows
of one parameter, so its view is contiguous and shares memory. A tied head appears only as the embedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from zerogap.models.causal_lm import CausalLM
from zerogap.models.config import ModelConfig
from zerogap.models.families import find_family
from zerogap.models.family import Family


@dataclass(frozen=True)
class TensorRows:
    """Rows ``[start, end)`` of ``parameter`` are the Hugging Face tensor ``hf_name``."""

    hf_name: str
    parameter: str
    start: int
    end: int


def tensor_rows(config: ModelConfig) -> Iterator[TensorRows]:
    """Every tensor of a checkpoint, in the order of the computation; together they cover all parameters."""
    family = find_family(config.family)
    yield TensorRows("model.embed_tokens.weight", "embed_tokens.weight", 0, config.vocab_size)
    for i in range(config.num_layers):
        yield from _layer_rows(family, config, i)
    yield TensorRows("model.norm.weight", "norm.weight", 0, config.hidden_size)
    if not config.tie_word_embeddings:
        yield TensorRows("lm_head.weight", "lm_head.weight", 0, config.vocab_size)


def hf_tensors(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, view of the model's storage) of every tensor; writing to a view changes the model."""
    parameters = dict(model.named_parameters())
    for rows in tensor_rows(model.config):
        yield rows.hf_name, parameters[rows.parameter].detach()[rows.start : rows.end]


def _layer_rows(family: Family, config: ModelConfig, index: int) -> Iterator[TensorRows]:
    for part in family.layer(config, index):
        for name, spec in part.weights.items():
            for kind in ("weight", "bias") if spec.has_bias else ("weight",):
                start = 0
                for hf_name, num_rows in spec.rows.items():
                    yield TensorRows(
                        f"model.layers.{index}.{hf_name}.{kind}",
                        f"layers.{index}.{name}.{kind}",
                        start,
                        start + num_rows,
                    )
                    start += num_rows
