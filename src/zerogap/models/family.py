"""A family of models: everything that is specific to one architecture, in one object.

A family is a file in ``families`` and an entry in its dict. No other code in the package tests for a family's name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gguf

from zerogap.models.config import ModelConfig
from zerogap.models.part import Part

HF_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
    "rms_norm_eps": "rms_norm_eps",
}
"""Key of config.json by field of ``ModelConfig``."""
OPTIONAL_SIZES = ("num_kv_heads", "head_dim")
"""Fields of ``ModelConfig`` whose key may be absent."""
GGUF_KEYS = {
    "num_layers": "block_count",
    "max_positions": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
"""Key of a GGUF file's metadata, without the architecture's prefix, by field of ``ModelConfig``."""

HfLimit = Callable[[Mapping[str, Any]], Iterable[str]]
"""Takes a config.json; gives a sentence for each key that asks for something unsupported."""


@dataclass(frozen=True, kw_only=True)
class GgufFormat:
    """How llama.cpp stores a family."""

    architecture: gguf.MODEL_ARCH
    keys: Mapping[str, str] = field(default_factory=lambda: GGUF_KEYS)
    refused: tuple[str, ...] = ("expert_count", "attention.sliding_window")
    """Keys of unsupported features; such a key must be absent or 0."""
    paired: tuple[str, ...] = ()
    """Endings of Hugging Face names, without ``.weight``, of the tensors whose rows within a head are in the order of
    rope's pairs: (0, H/2, 1, H/2 + 1, ...) instead of (0, 1, 2, ...)."""

    @property
    def name(self) -> str:
        """``general.architecture`` of the file, which is also the prefix of its keys."""
        return gguf.MODEL_ARCH_NAMES[self.architecture]

    def is_paired(self, hf_name: str) -> bool:
        """Whether the file stores the rows of this tensor in the order of rope's pairs."""
        return hf_name.removesuffix(".weight").endswith(self.paired)

    def tensor_names(self, hf_names: Iterable[str], num_layers: int) -> dict[str, str]:
        """Name in the file by Hugging Face name, from the gguf package's own table."""
        table = gguf.get_tensor_name_map(self.architecture, num_layers)
        pairs = ((name, table.get_name(name, (".weight", ".bias"))) for name in hf_names)
        return {name: theirs for name, theirs in pairs if theirs is not None}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture. A new one is often ``dataclasses.replace`` of another."""

    name: str
    """``model_type`` of config.json, and ``family`` of a recipe's [model.init]."""
    hf_class: str
    """The class in transformers, for ``architectures`` of config.json."""
    layer: Callable[[ModelConfig, int], Sequence[Part]]
    """The parts of layer ``i``, in order."""
    config_class: type[ModelConfig] = ModelConfig
    """A subclass of ModelConfig if the family has further sizes."""
    hf_keys: Mapping[str, str] = field(default_factory=lambda: HF_KEYS)
    hf_constants: Mapping[str, Any] = field(default_factory=dict)
    """Written into every config.json."""
    hf_limits: Sequence[HfLimit] = ()
    hf_head_dim: int | None = None
    """``head_dim`` of a config.json without one; None: hidden_size / num_heads."""
    gguf: GgufFormat | None = None
    """None: GGUF files of this family are not supported."""
