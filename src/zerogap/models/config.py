"""What a model is: its family and sizes. ``hf_config`` and ``gguf_config`` read and write it."""

from dataclasses import dataclass

from zerogap.errors import ModelError
from zerogap.models.rope import DEFAULT_THETA, RopeScaling


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of one decoder, checked on creation and frozen. A family with further sizes has a subclass.

    Example:
        ``ModelConfig(family="qwen3", vocab_size=256, hidden_size=64, intermediate_size=128,
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, tie_word_embeddings=True)``
    """

    family: str
    """Key of ``families.FAMILIES``; decides what the layers consist of."""
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's size."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key/value heads; each serves num_heads / num_kv_heads query heads."""
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = DEFAULT_THETA
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    """Head and embedding are one tensor."""
    max_positions: int = 2048
    """Longest sequence in tokens, as the checkpoint declares it."""
    eos_token_ids: tuple[int, ...] = ()
    """Every id that ends a completion, from config.json and generation_config.json together."""
    bos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        for name, is_ok, needed in self._rules():
            if not is_ok:
                msg = f"model config: {name} = {getattr(self, name)!r} is not allowed: it must be {needed}"
                raise ModelError(msg)

    def _rules(self) -> list[tuple[str, bool, str]]:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
        sizes += ("num_kv_heads", "head_dim", "max_positions")
        ids = f"within the vocabulary, [0, {self.vocab_size})"
        return [
            *((name, getattr(self, name) >= 1, "at least 1") for name in sizes),
            ("head_dim", self.head_dim % 2 == 0, "even, because rope rotates pairs"),
            (
                "num_kv_heads",
                self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0,
                f"a divisor of num_heads ({self.num_heads})",
            ),
            ("rms_norm_eps", self.rms_norm_eps > 0, "positive"),
            ("rope_theta", self.rope_theta > 0, "positive"),
            ("eos_token_ids", self._has(*self.eos_token_ids), ids),
            ("bos_token_id", self._has(self.bos_token_id), ids),
            ("pad_token_id", self._has(self.pad_token_id), ids),
        ]

    def _has(self, *token_ids: int | None) -> bool:
        return all(i is None or 0 <= i < self.vocab_size for i in token_ids)

    @property
    def attention_scale(self) -> float:
        """Factor on each dot product of query and key."""
        return self.head_dim**-0.5
