"""[model]: the policy's weights, architecture and tokenizer.

The section is called ``ModelSection`` because ``ModelConfig`` is an architecture (zerogap.models).
"""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.section import Section


class ModelInit(Section):
    """[model.init]: a model with random weights from ``run.seed``, and the tokenizer's vocabulary."""

    family: str = "qwen3"
    """Architecture: a key of ``zerogap.models.FAMILIES``, checked when the model is built."""
    hidden_size: int = Field(ge=1)
    """Model dimension."""
    intermediate_size: int = Field(ge=1)
    """Hidden dimension of the MLP."""
    num_layers: int = Field(ge=1)
    """Number of transformer layers."""
    num_heads: int = Field(ge=1)
    """Number of query heads."""
    num_kv_heads: int = Field(ge=1)
    """Number of key/value heads; must divide num_heads."""
    head_dim: int = Field(ge=2)
    """Dimension of a head; even."""
    rope_theta: float = Field(10_000.0, gt=0)
    """Base of the rotary frequencies."""
    tie_word_embeddings: bool = True
    """Use the embedding as the output head."""
    max_positions: int = Field(2048, ge=1)
    """Longest sequence, prompt and completion together, in tokens."""

    def problems(self) -> Iterator[str]:
        """A number of heads or a head dimension that cannot work."""
        if self.num_heads % self.num_kv_heads:
            yield f"num_kv_heads = {self.num_kv_heads}: num_heads = {self.num_heads} is not a multiple of it, and each key/value head serves equally many query heads; set a divisor of num_heads"
        if self.head_dim % 2:
            yield f"head_dim = {self.head_dim}: rotary embeddings rotate pairs of dimensions; set an even number"


class ModelSection(Section):
    """[model]: a pretrained policy (``path``) or a random one (``init``); exactly one of them."""

    path: str | None = None
    """A folder in Hugging Face format, a hub id, a ``.gguf`` file, or ``package:<module>/<file>`` for a file in an
    installed Python package."""
    init: ModelInit | None = None
    """Architecture of a model with random weights."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Precision of weights and activations in engine and trainer; the optimizer's master weights are always fp32."""
    tokenizer: str | None = None
    """``"byte"`` (one id per byte), or a folder, hub id or ``.gguf`` file; none: the tokenizer of ``path``."""

    def problems(self) -> Iterator[str]:
        """Both or neither of path and init; random weights without a tokenizer."""
        if (self.path is None) == (self.init is None):
            given = (
                "neither is given"
                if self.path is None
                else f"both are given (path = {self.path!r})"
            )
            yield f"path, init: {given}, but exactly one says where the weights come from; set model.path or the table [model.init]"
        if self.init is not None and self.tokenizer is None:
            yield 'tokenizer is missing: random weights have no tokenizer; set model.tokenizer = "byte", or a tokenizer folder'
