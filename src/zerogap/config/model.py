"""[model]: where the policy comes from.

Named ``ModelSection``, since ``ModelConfig`` is an architecture (zerogap.models).
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.config.section import Section


class ModelInit(Section):
    """[model.init]: a model with random weights, seeded by ``run.seed``. Its vocabulary is the tokenizer's."""

    family: str = "qwen3"
    """Architecture: an entry of ``zerogap.models.FAMILIES``, which refuses others when the model is built."""
    hidden_size: int = Field(ge=1)
    """Width of the residual stream."""
    intermediate_size: int = Field(ge=1)
    """Width of the MLP."""
    num_layers: int = Field(ge=1)
    """Transformer layers."""
    num_heads: int = Field(ge=1)
    """Query heads."""
    num_kv_heads: int = Field(ge=1)
    """Key/value heads; divides num_heads."""
    head_dim: int = Field(ge=2)
    """Width of a head; even."""
    rope_theta: float = Field(10_000.0, gt=0)
    """Base of the rotary frequencies."""
    tie_word_embeddings: bool = True
    """Use the embedding as output head."""
    max_positions: int = Field(2048, ge=1)
    """Longest sequence, prompt and completion together, in tokens."""

    def problems(self) -> Iterator[str]:
        """Heads that do not divide."""
        if self.num_heads % self.num_kv_heads:
            yield f"num_kv_heads = {self.num_kv_heads}: each key/value head serves the same number of query heads, and {self.num_heads} is no multiple of it; set a divisor of num_heads"
        if self.head_dim % 2:
            yield f"head_dim = {self.head_dim}: rotary positions turn pairs of dimensions; set an even number"


class ModelSection(Section):
    """[model]: a pretrained policy (``path``) or a random one (``init``); exactly one of them."""

    path: str | None = None
    """A folder in Hugging Face format, a hub id, a ``.gguf`` file, or ``package:<module>/<file>``: a file
    that an installed Python package ships."""
    init: ModelInit | None = None
    """Architecture of a randomly initialised model."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Precision of weights and activations, in engine and trainer; the optimizer's own weights are fp32 always."""
    tokenizer: str | None = None
    """``"byte"`` (one id a byte), or a folder, hub id or ``.gguf`` file; none: the one that came with ``path``."""

    def problems(self) -> Iterator[str]:
        """Neither or both sources; random weights without a tokenizer."""
        if (self.path is None) == (self.init is None):
            given = (
                "neither is given"
                if self.path is None
                else f"both are given (path = {self.path!r})"
            )
            yield f"path, init: a policy comes from files or from random weights, and {given}; set model.path or the table [model.init]"
        if self.init is not None and self.tokenizer is None:
            yield 'tokenizer is missing: random weights bring no tokenizer; set model.tokenizer = "byte", or the folder of one'
