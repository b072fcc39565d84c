"""Which rows of which parameter each Hugging Face tensor is: a bijection, in both directions.

Ours fuses q, k, v and gate, up by rows; a Hugging Face tensor is a run of rows of one parameter, so a
view of it is contiguous and shares memory. A tied head has one name, the embedding's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from zerogap.models.causal_lm import CausalLM
from zerogap.models.config import ModelConfig


@dataclass(frozen=True)
class TensorRows:
    """Rows ``[start, end)`` of ``parameter`` are the Hugging Face tensor ``hf_name``."""

    hf_name: str
    parameter: str
    start: int
    end: int


def tensor_rows(config: ModelConfig) -> Iterator[TensorRows]:
    """Every tensor of a checkpoint, in the order of the computation; together they tile all parameters."""
    yield TensorRows("model.embed_tokens.weight", "embed_tokens.weight", 0, config.vocab_size)
    for i in range(config.num_layers):
        yield from _layer_rows(config, f"model.layers.{i}", f"layers.{i}")
    yield TensorRows("model.norm.weight", "norm.weight", 0, config.hidden_size)
    if not config.tie_word_embeddings:
        yield TensorRows("lm_head.weight", "lm_head.weight", 0, config.vocab_size)


def hf_tensors(model: CausalLM) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, view of the model's storage) of every tensor; writing to a view changes the model."""
    parameters = dict(model.named_parameters())
    for rows in tensor_rows(model.config):
        yield rows.hf_name, parameters[rows.parameter].detach()[rows.start : rows.end]


def _layer_rows(config: ModelConfig, theirs: str, ours: str) -> Iterator[TensorRows]:
    hidden, ffn = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    yield TensorRows(f"{theirs}.input_layernorm.weight", f"{ours}.input_norm.weight", 0, hidden)
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        start = 0
        for letter, size in (("q", queries), ("k", keys), ("v", keys)):
            hf_name = f"{theirs}.self_attn.{letter}_proj.{kind}"
            yield TensorRows(hf_name, f"{ours}.qkv.{kind}", start, start + size)
            start += size
    for norm in ("q_norm", "k_norm") if config.qk_norm else ():
        hf_name = f"{theirs}.self_attn.{norm}.weight"
        yield TensorRows(hf_name, f"{ours}.{norm}.weight", 0, config.head_dim)
    yield TensorRows(f"{theirs}.self_attn.o_proj.weight", f"{ours}.o.weight", 0, hidden)
    norm = f"{theirs}.post_attention_layernorm.weight"
    yield TensorRows(norm, f"{ours}.post_norm.weight", 0, hidden)
    yield TensorRows(f"{theirs}.mlp.gate_proj.weight", f"{ours}.gate_up.weight", 0, ffn)
    yield TensorRows(f"{theirs}.mlp.up_proj.weight", f"{ours}.gate_up.weight", ffn, 2 * ffn)
    yield TensorRows(f"{theirs}.mlp.down_proj.weight", f"{ours}.down.weight", 0, hidden)
