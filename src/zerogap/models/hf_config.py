"""Reads and writes a model's config as Hugging Face's config.json, by the keys of its family."""

from collections.abc import Mapping
from typing import Any

from zerogap.errors import ModelError
from zerogap.models.config import ModelConfig
from zerogap.models.families import FAMILIES, find_family
from zerogap.models.family import OPTIONAL_SIZES, Family
from zerogap.models.rope import rope_from_hf, rope_to_hf


def config_from_hf(
    hf: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> ModelConfig:
    """The config that a config.json (and generation_config.json) describes.

    Raises:
        ModelError: an unsupported family or feature, or a missing key.
    """
    family = _family_of(hf)
    _check_supported(hf, family)
    theta, scaling = rope_from_hf(hf)
    sizes = {field: hf[key] for field, key in family.hf_keys.items() if hf.get(key) is not None}
    sizes["num_kv_heads"] = sizes.get("num_kv_heads") or sizes["num_heads"]
    sizes["head_dim"] = sizes.get("head_dim") or family.hf_head_dim or _share_of_hidden_size(hf)
    sizes["rms_norm_eps"] = float(sizes["rms_norm_eps"])
    return family.config_class(
        family=family.name,
        **sizes,
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
        eos_token_ids=_merge_ids(hf.get("eos_token_id"), (generation or {}).get("eos_token_id")),
        bos_token_id=hf.get("bos_token_id"),
        pad_token_id=hf.get("pad_token_id"),
    )


def config_to_hf(config: ModelConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """The config.json of a model whose weights are stored as ``dtype``, a torch type's name."""
    family = find_family(config.family)
    return {
        "architectures": [family.hf_class],
        "model_type": family.name,
        **{key: getattr(config, field) for field, key in family.hf_keys.items()},
        **family.hf_constants,
        **rope_to_hf(config.rope_theta, config.rope_scaling),
        "tie_word_embeddings": config.tie_word_embeddings,
        "dtype": dtype,
        **special_ids_to_hf(config),
    }


def special_ids_to_hf(config: ModelConfig) -> dict[str, Any]:
    """``bos_token_id``, ``eos_token_id`` (a list when there are several) and ``pad_token_id``."""
    eos = list(config.eos_token_ids)
    return {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos if len(eos) > 1 else (eos[0] if eos else None),
        "pad_token_id": config.pad_token_id,
    }


def _family_of(hf: Mapping[str, Any]) -> Family:
    if "model_type" not in hf:
        msg = f"config.json has no model_type, so it does not belong to a model; give the folder of a model (a run's is its export/) of one of these types: {sorted(FAMILIES)}"
        raise ModelError(msg)
    return find_family(hf["model_type"])


def _check_supported(hf: Mapping[str, Any], family: Family) -> None:
    """Raise ModelError, naming every key and value at fault, unless the model can be computed exactly."""
    needed = [key for field, key in family.hf_keys.items() if field not in OPTIONAL_SIZES]
    missing = [key for key in needed if hf.get(key) is None]
    if missing:
        msg = (
            f"config.json of a {family.name} model lacks {missing}, which have no default; add them"
        )
        raise ModelError(msg)
    problems = [problem for limit in family.hf_limits for problem in limit(hf)]
    if problems:
        msg = f"config.json of a {family.name} model asks for unsupported features: {'; '.join(problems)}"
        raise ModelError(msg)


def _share_of_hidden_size(hf: Mapping[str, Any]) -> int:
    hidden_size, num_heads = hf["hidden_size"], hf["num_attention_heads"]
    if hidden_size % num_heads:
        msg = f"hidden_size = {hidden_size} cannot be divided among num_attention_heads = {num_heads}; add head_dim"
        raise ModelError(msg)
    return hidden_size // num_heads


def _merge_ids(*given: int | list[int] | None) -> tuple[int, ...]:
    """All ids once, in order of appearance."""
    lists = [[ids] if isinstance(ids, int) else list(ids or ()) for ids in given]
    return tuple(dict.fromkeys(token_id for ids in lists for token_id in ids))
