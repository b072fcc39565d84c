"""What a family of models is: everything that one architecture has of its own, in one record.

A family is a file in ``families`` and an entry in its dict. Nothing else in the package asks for a family by name.
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
"""Field of ``ModelConfig`` to key of config.json."""
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
"""Field of ``ModelConfig`` to key of a GGUF file's metadata, without the architecture's prefix."""

HfLimit = Callable[[Mapping[str, Any]], Iterable[str]]
"""What in a config.json cannot be computed: a sentence for each key at fault."""


@dataclass(frozen=True, kw_only=True)
class GgufFormat:
    """How llama.cpp stores a family."""

    architecture: gguf.MODEL_ARCH
    keys: Mapping[str, str] = field(default_factory=lambda: GGUF_KEYS)
    refused: tuple[str, ...] = ("expert_count", "attention.sliding_window")
    """Keys of features that are not computed; 0 means that there are none."""
    paired: tuple[str, ...] = ()
    """Endings of Hugging Face names, without ``.weight``, of tensors whose rows are stored as rope's pairs, (0, H/2, 1,
    H/2 + 1, ...) within a head, where ours are (0, 1, 2, ...)."""

    @property
    def name(self) -> str:
        """``general.architecture`` of the file, and prefix of its keys."""
        return gguf.MODEL_ARCH_NAMES[self.architecture]

    def is_paired(self, hf_name: str) -> bool:
        """Whether the file has the rows of this tensor in another order."""
        return hf_name.removesuffix(".weight").endswith(self.paired) if self.paired else False

    def tensor_names(self, hf_names: Iterable[str], num_layers: int) -> dict[str, str]:
        """Hugging Face name to the file's, by the gguf package's own table."""
        table = gguf.get_tensor_name_map(self.architecture, num_layers)
        pairs = ((name, table.get_name(name, (".weight", ".bias"))) for name in hf_names)
        return {name: theirs for name, theirs in pairs if theirs is not None}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture. A new one is often ``dataclasses.replace`` of another."""

    name: str
    """``model_type`` of config.json, and ``family`` of a recipe's [model.init]."""
    hf_class: str
    """The class that config.json names."""
    layer: Callable[[ModelConfig, int], Sequence[Part]]
    """What layer ``i`` is made of."""
    config_class: type[ModelConfig] = ModelConfig
    """A subclass, if the family has sizes that others have not."""
    hf_keys: Mapping[str, str] = field(default_factory=lambda: HF_KEYS)
    hf_constants: Mapping[str, Any] = field(default_factory=dict)
    """Written into every config.json."""
    hf_limits: Sequence[HfLimit] = ()
    hf_head_dim: int | None = None
    """Head size of a config.json that names none; None: the heads share the hidden size."""
    gguf: GgufFormat | None = None
    """None: no GGUF file is read."""
