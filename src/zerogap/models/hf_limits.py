"""Limits of families: the features that a config.json must not ask for.

A feature that is silently ignored gives wrong logits. So every key that changes the computation is either read
elsewhere or must have its plain value here.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from zerogap.models.family import HfLimit

NO_ATTENTION_BIAS = ("attention_bias", False, "it would add a bias to the output projection")
"""For families whose config.json has an ``attention_bias`` switch."""


def plain_values(*limits: tuple[str, Any, str]) -> HfLimit:
    """Keys that must be absent or have their plain value.

    Args:
        limits: (key, plain value, why others are unsupported).
    """

    def check(hf: Mapping[str, Any]) -> Iterator[str]:
        for key, plain, why in limits:
            if hf.get(key) not in (plain, None):
                yield f"{key} = {hf[key]!r} ({why}; supported: {plain!r})"

    return check


def full_attention_only(hf: Mapping[str, Any]) -> Iterator[str]:
    """Refuse a sliding window that a layer uses; Qwen configs name one but leave it switched off."""
    layer_types = hf.get("layer_types")
    if layer_types is not None:
        if others := sorted(set(layer_types) - {"full_attention"}):
            yield f"layer_types has {others} (supported: 'full_attention')"
        return
    window, first_layer = hf.get("sliding_window"), hf.get("max_window_layers", 0)
    is_used = hf.get("use_sliding_window") and window is not None
    if is_used and first_layer < hf["num_hidden_layers"]:
        yield (
            f"sliding_window = {window} with use_sliding_window = True from layer {first_layer} on "
            "(only full attention is supported; set use_sliding_window = False)"
        )


DENSE = (
    plain_values(
        ("hidden_act", "silu", "the MLP is SwiGLU"),
        ("mlp_bias", False, "MLP projections have no bias"),
        ("quantization_config", None, "weights are loaded as fp32, bf16 or fp16"),
    ),
    full_attention_only,
)
"""Limits of a dense decoder with full attention."""
