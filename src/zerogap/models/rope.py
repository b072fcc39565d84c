"""Rotary position embedding: the scaling that a checkpoint asks for, and its inverse frequencies.

Frequencies are computed in fp32 by the same operations in the same order as in transformers'
``modeling_rope_utils.py``, so that cos, sin and the logits match.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from zerogap.errors import ModelError

DEFAULT_THETA = 10000.0
"""The default of transformers."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context of pre-training."""

    kind: Literal["linear", "llama3"]
    factor: float
    """Divides the frequencies: all of them (linear) or those of long waves (llama3)."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than original_max_positions / low_freq_factor are stretched by the full factor."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than original_max_positions / high_freq_factor are not stretched."""
    original_max_positions: int = 8192
    """llama3: context length of pre-training."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            msg = f"rope scaling kind = {self.kind!r} is not known; use 'linear' or 'llama3'"
            raise ModelError(msg)
        if not self.factor > 0:
            msg = f"rope scaling factor = {self.factor} is not allowed: it divides frequencies, so it must be positive"
            raise ModelError(msg)
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor:
            msg = (
                f"llama3 rope scaling has low_freq_factor = {self.low_freq_factor} and "
                f"high_freq_factor = {self.high_freq_factor}; they must satisfy 0 < low < high"
            )
            raise ModelError(msg)


def rope_from_hf(hf_config: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling from a config.json.

    Reads the old keys (``rope_theta``, ``rope_scaling``) and the key of transformers 5 (``rope_parameters``).

    Raises:
        ModelError: an unsupported rope type, partial rotation, or parameters that differ by layer.
    """
    rope = dict(hf_config.get("rope_scaling") or hf_config.get("rope_parameters") or {})
    nested = [key for key, value in rope.items() if isinstance(value, Mapping)]
    if nested:
        msg = f"rope_parameters has an entry for each layer type ({nested}), but only the same rope in all layers is supported; use another model"
        raise ModelError(msg)
    theta = rope.get("rope_theta") or hf_config.get("rope_theta") or DEFAULT_THETA
    partial = rope.get("partial_rotary_factor", hf_config.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        msg = f"partial_rotary_factor = {partial} is not supported: rope rotates the whole head (1.0); use another model"
        raise ModelError(msg)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return float(theta), None
    return float(theta), _scaling_from_hf(kind, rope, hf_config)


def rope_to_hf(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """``rope_theta`` and ``rope_scaling``: keys that old and new tools both read."""
    if scaling is None:
        return {"rope_theta": theta, "rope_scaling": None}
    hf: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        hf["low_freq_factor"] = scaling.low_freq_factor
        hf["high_freq_factor"] = scaling.high_freq_factor
        hf["original_max_position_embeddings"] = scaling.original_max_positions
    return {"rope_theta": theta, "rope_scaling": hf}


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """fp32 [head_dim / 2], radians per position; entry j rotates elements j and j + head_dim / 2."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    inv_freq = 1.0 / (theta**exponents)
    if scaling is None:
        return inv_freq
    if scaling.kind == "linear":
        return inv_freq / scaling.factor
    return _llama3_frequencies(inv_freq, scaling)


def _llama3_frequencies(inv_freq: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Keep the frequencies of short waves, divide those of long waves by the factor, interpolate in between."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    longest_kept = scaling.original_max_positions / high
    shortest_divided = scaling.original_max_positions / low
    wave_len = 2 * math.pi / inv_freq
    scaled = torch.where(wave_len > shortest_divided, inv_freq / scaling.factor, inv_freq)
    smooth = (scaling.original_max_positions / wave_len - low) / (high - low)
    ramp = (1 - smooth) * scaled / scaling.factor + smooth * scaled
    is_between = ~(wave_len < longest_kept) & ~(wave_len > shortest_divided)
    return torch.where(is_between, ramp, scaled)


def _scaling_from_hf(
    kind: str, rope: Mapping[str, Any], hf_config: Mapping[str, Any]
) -> RopeScaling:
    if kind not in ("linear", "llama3"):
        msg = (
            f"rope_type = {kind!r} is not supported; supported are 'default', 'linear' and 'llama3'"
        )
        raise ModelError(msg)
    needed = ["factor"]
    if kind == "llama3":
        needed += ["low_freq_factor", "high_freq_factor"]
    missing = [key for key in needed if rope.get(key) is None]
    if missing:
        msg = f"rope_type = {kind!r} needs {missing}, which {dict(rope)} lacks; add them to config.json"
        raise ModelError(msg)
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    original = (
        hf_config.get("original_max_position_embeddings")
        or rope.get("original_max_position_embeddings")
        or hf_config["max_position_embeddings"]
    )
    return RopeScaling(
        "llama3",
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(original),
    )
