"""Refuses a config.json that asks for something this package does not compute.

A feature that is silently ignored gives wrong logits, so every key that changes the computation is
either read elsewhere or must have its plain value here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from zerogap.errors import ModelError

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "rms_norm_eps",
    "max_position_embeddings",
)
_PLAIN_VALUES: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("hidden_act", ("silu", None), "the MLP is SwiGLU"),
    # Qwen2 has no such switch: q, k and v always have a bias, the output projection never.
    ("attention_bias", (False, None), "it would add a bias to the output projection"),
    ("mlp_bias", (False, None), "MLP projections have no bias"),
    ("quantization_config", (None,), "weights are loaded as fp32, bf16 or fp16"),
)


def check_supported(hf: Mapping[str, Any], *, families: Sequence[str]) -> None:
    """Raise ModelError, naming every key and value at fault, unless the model can be computed exactly."""
    family = hf.get("model_type")
    if family is None:
        msg = f"config.json names no model_type, so it is no model's; give a model folder (a run's model is in its export/), of one of {families}"
        raise ModelError(msg)
    if family not in families:
        msg = f"config.json has model_type = {family!r}, which is not supported; supported are {families}"
        raise ModelError(msg)
    missing = [key for key in _REQUIRED if hf.get(key) is None]
    if missing:
        msg = f"config.json of a {family} model lacks {missing}; add them, they cannot be guessed"
        raise ModelError(msg)
    problems = [
        f"{key} = {hf[key]!r} ({why}; supported: {plain[0]!r})"
        for key, plain, why in _PLAIN_VALUES
        if hf.get(key) not in plain and not (family == "qwen2" and key == "attention_bias")
    ]
    problems += _sliding_window_problems(hf)
    if problems:
        msg = (
            f"config.json of a {family} model asks for what is not supported: {'; '.join(problems)}"
        )
        raise ModelError(msg)


def _sliding_window_problems(hf: Mapping[str, Any]) -> list[str]:
    """A window counts only where a layer uses it: Qwen configs name one and leave it switched off."""
    layer_types = hf.get("layer_types")
    if layer_types is not None:
        others = sorted(set(layer_types) - {"full_attention"})
        return [f"layer_types has {others} (every layer attends to the whole sequence)"] * bool(
            others
        )
    window, first_layer = hf.get("sliding_window"), hf.get("max_window_layers", 0)
    is_used = hf.get("use_sliding_window") and window is not None
    if is_used and first_layer < hf["num_hidden_layers"]:
        return [
            f"sliding_window = {window} with use_sliding_window = True from layer {first_layer} on "
            "(every layer attends to the whole sequence; set use_sliding_window = False)"
        ]
    return []
