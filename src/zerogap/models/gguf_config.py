"""The metadata of a GGUF file as a ModelConfig.

Keys are ``<architecture>.<name>``. llama.cpp's converter stores llama3 rope scaling as a tensor of divisors, not as
parameters; this module finds the parameters that give these divisors.

Source: convert_hf_to_gguf.py of github.com/ggml-org/llama.cpp.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from zerogap.errors import ModelError
from zerogap.gguf_file import GgufFile
from zerogap.models.config import ModelConfig
from zerogap.models.families import FAMILIES
from zerogap.models.family import OPTIONAL_SIZES, Family, GgufFormat
from zerogap.models.rope import DEFAULT_THETA, RopeScaling, inverse_frequencies

ROPE_DIVISORS = "rope_freqs.weight"
_LLAMA3_FACTORS = (8.0, 32.0)
"""Factors of the Llama 3.1 and 3.2 releases; their other rope parameters are RopeScaling's defaults."""


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """The config that the metadata (and the presence of a head tensor) describe.

    Raises:
        ModelError: metadata is missing or asks for an unsupported feature.
    """
    metadata = file.scalars
    family, stored_as = _family_of(metadata.get("general.architecture"))
    prefix = f"{stored_as.name}."
    own = {k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}
    shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    _check_complete(stored_as, own, shapes)
    sizes = {field: own[key] for field, key in stored_as.keys.items() if key in own}
    sizes.setdefault("num_kv_heads", sizes["num_heads"])
    sizes.setdefault("head_dim", sizes["hidden_size"] // sizes["num_heads"])
    sizes["rms_norm_eps"] = _decimal(sizes["rms_norm_eps"])
    _check_supported(stored_as, own, sizes["head_dim"])
    theta = _decimal(own.get("rope.freq_base", DEFAULT_THETA))
    return family.config_class(
        family=family.name,
        **sizes,
        vocab_size=shapes["token_embd.weight"][0],
        rope_theta=theta,
        rope_scaling=_rope_scaling(file, own, sizes["head_dim"], theta),
        tie_word_embeddings="output.weight" not in shapes,
        eos_token_ids=file.end_token_ids,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        pad_token_id=metadata.get("tokenizer.ggml.padding_token_id"),
    )


def _family_of(architecture: str | None) -> tuple[Family, GgufFormat]:
    known = {f.gguf.name: (f, f.gguf) for f in FAMILIES.values() if f.gguf is not None}
    if architecture not in known:
        msg = f"the GGUF file has architecture {architecture!r}, which is not supported; supported are {sorted(known)}"
        raise ModelError(msg)
    return known[architecture]


def _check_complete(
    stored_as: GgufFormat, own: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    needed = [key for field, key in stored_as.keys.items() if field not in OPTIONAL_SIZES]
    missing = [f"{stored_as.name}.{key}" for key in needed if key not in own]
    if missing or "token_embd.weight" not in shapes:
        lacks = missing or ["token_embd.weight"]
        msg = f"the GGUF file lacks {', '.join(lacks)}, so it holds only part of a model; use a complete file"
        raise ModelError(msg)


def _check_supported(stored_as: GgufFormat, own: Mapping[str, Any], head_dim: int) -> None:
    refused = {f"{stored_as.name}.{key}": own[key] for key in stored_as.refused if own.get(key)}
    if refused:
        msg = f"the GGUF file asks for {refused}, which is not supported; use a dense model with full attention"
        raise ModelError(msg)
    partial = own.get("rope.dimension_count")
    if partial not in (None, head_dim):
        msg = f"the GGUF file rotates {partial} of {head_dim} elements of a head, but only rotating all of them is supported; use another model"
        raise ModelError(msg)


def _rope_scaling(
    file: GgufFile, own: Mapping[str, Any], head_dim: int, theta: float
) -> RopeScaling | None:
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor", 1.0)
    if kind not in ("none", "linear"):
        msg = f"the GGUF file has rope.scaling.type = {kind!r}, which is not supported; supported are 'none' and 'linear'"
        raise ModelError(msg)
    if kind == "linear" and factor != 1.0:
        return RopeScaling("linear", _decimal(factor))
    if ROPE_DIVISORS not in file.tensors:
        return None
    divisors_h = file.rows(file.tensors[ROPE_DIVISORS], 0, 1)[0]
    return _llama3_scaling(divisors_h, head_dim, theta)


def _llama3_scaling(divisors_h: np.ndarray, head_dim: int, theta: float) -> RopeScaling:
    """The parameters that give these divisors; only those of known releases are tried."""
    plain_h = inverse_frequencies(head_dim, theta, None)
    for factor in _LLAMA3_FACTORS:
        scaling = RopeScaling("llama3", factor)
        expected_h = (plain_h / inverse_frequencies(head_dim, theta, scaling)).numpy()
        # The converter computes in float64; transformers and this package compute in fp32.
        if expected_h.shape == divisors_h.shape and np.allclose(expected_h, divisors_h, rtol=1e-5):
            return scaling
    msg = (
        f"the GGUF file scales rope by {ROPE_DIVISORS} (largest divisor {divisors_h.max():g}), which is not llama3 "
        f"scaling with a factor of {' or '.join(map(str, _LLAMA3_FACTORS))}; load the model's safetensors instead"
    )
    raise ModelError(msg)


def _decimal(stored: float) -> float:
    """The shortest decimal that fp32 stores as this value: GGUF returns 1e-5 as 9.999999747378752e-06."""
    return float(str(np.float32(stored)))
