"""What a model is: sizes and switches, read from and written to a Hugging Face config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerogap.errors import ModelError
from zerogap.models.hf_support import check_supported
from zerogap.models.rope import DEFAULT_THETA, RopeScaling, rope_from_hf, rope_to_hf

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""Family (Hugging Face's ``model_type``) to the class name that config.json declares."""

_QWEN3_HEAD_DIM = 128
"""Head size of a Qwen3 config that names none; the other families divide the hidden size."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of one dense decoder; checked on creation, never changed.

    Example:
        ``ModelConfig(family="qwen3", vocab_size=256, hidden_size=64, intermediate_size=128,
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, tie_word_embeddings=True)``
    """

    family: str
    """``llama``, ``qwen2`` (bias on q, k, v) or ``qwen3`` (RMS norm on each query and key head)."""
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
    """The head is the embedding: one tensor, not two equal ones."""
    max_positions: int = 2048
    """Longest sequence, in tokens, that the checkpoint declares."""
    eos_token_ids: tuple[int, ...] = ()
    """Every id that ends a completion, of config.json and generation_config.json together."""
    bos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.family not in ARCHITECTURES:
            msg = f"family = {self.family!r} is not supported; use one of {sorted(ARCHITECTURES)}"
            raise ModelError(msg)
        for name, is_ok, needed in self._rules():
            if not is_ok:
                msg = f"model config: {name} = {getattr(self, name)!r} is not allowed: it must be {needed}"
                raise ModelError(msg)

    def _rules(self) -> list[tuple[str, bool, str]]:
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads")
        sizes += ("num_kv_heads", "head_dim", "max_positions")
        rules = [(name, getattr(self, name) >= 1, "at least 1") for name in sizes]
        special = (self.bos_token_id, self.pad_token_id)
        return [
            *rules,
            ("head_dim", self.head_dim % 2 == 0, "even, because rope turns pairs"),
            (
                "num_kv_heads",
                self.num_kv_heads > 0 and self.num_heads % self.num_kv_heads == 0,
                f"a divisor of num_heads ({self.num_heads})",
            ),
            ("rms_norm_eps", self.rms_norm_eps > 0, "positive"),
            ("rope_theta", self.rope_theta > 0, "positive"),
            ("eos_token_ids", all(map(self._is_id, self.eos_token_ids)), self._id_range),
            ("bos_token_id", special[0] is None or self._is_id(special[0]), self._id_range),
            ("pad_token_id", special[1] is None or self._is_id(special[1]), self._id_range),
        ]

    def _is_id(self, token_id: int) -> bool:
        return 0 <= token_id < self.vocab_size

    @property
    def _id_range(self) -> str:
        return f"within the vocabulary, [0, {self.vocab_size})"

    @property
    def qkv_bias(self) -> bool:
        """Whether q, k and v projections add a bias."""
        return self.family == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """Whether each query and key head is RMS-normalised before rope."""
        return self.family == "qwen3"

    @property
    def attention_scale(self) -> float:
        """What a query-key product is multiplied by."""
        return self.head_dim**-0.5

    @classmethod
    def from_hf(
        cls, hf: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "ModelConfig":
        """The config that a config.json (and generation_config.json) describes.

        Raises:
            ModelError: another family, a missing key, or a feature this package does not compute.
        """
        check_supported(hf, families=sorted(ARCHITECTURES))
        theta, scaling = rope_from_hf(hf)
        num_heads = hf["num_attention_heads"]
        return cls(
            family=hf["model_type"],
            vocab_size=hf["vocab_size"],
            hidden_size=hf["hidden_size"],
            intermediate_size=hf["intermediate_size"],
            num_layers=hf["num_hidden_layers"],
            num_heads=num_heads,
            num_kv_heads=hf.get("num_key_value_heads") or num_heads,
            head_dim=hf.get("head_dim") or _default_head_dim(hf),
            rms_norm_eps=float(hf["rms_norm_eps"]),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
            max_positions=hf["max_position_embeddings"],
            eos_token_ids=_merge_ids(
                hf.get("eos_token_id"), (generation or {}).get("eos_token_id")
            ),
            bos_token_id=hf.get("bos_token_id"),
            pad_token_id=hf.get("pad_token_id"),
        )

    def to_hf(self, *, dtype: str = "float32") -> dict[str, Any]:
        """The config.json of this model with weights stored in ``dtype``, a name of torch's."""
        return {
            "architectures": [ARCHITECTURES[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.rms_norm_eps,
            **rope_to_hf(self.rope_theta, self.rope_scaling),
            "tie_word_embeddings": self.tie_word_embeddings,
            "dtype": dtype,
            **self.special_ids_to_hf(),
        }

    def special_ids_to_hf(self) -> dict[str, Any]:
        """``bos_token_id``, ``eos_token_id`` (a list when there are several) and ``pad_token_id``."""
        eos = list(self.eos_token_ids)
        return {
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos if len(eos) > 1 else (eos[0] if eos else None),
            "pad_token_id": self.pad_token_id,
        }


def _default_head_dim(hf: Mapping[str, Any]) -> int:
    if hf["model_type"] == "qwen3":
        return _QWEN3_HEAD_DIM
    hidden_size, num_heads = hf["hidden_size"], hf["num_attention_heads"]
    if hidden_size % num_heads:
        msg = f"hidden_size = {hidden_size} cannot be divided among num_attention_heads = {num_heads}; add head_dim"
        raise ModelError(msg)
    return hidden_size // num_heads


def _merge_ids(*given: int | list[int] | None) -> tuple[int, ...]:
    """All ids once, in order of appearance."""
    lists = [[ids] if isinstance(ids, int) else list(ids or ()) for ids in given]
    return tuple(dict.fromkeys(token_id for ids in lists for token_id in ids))
