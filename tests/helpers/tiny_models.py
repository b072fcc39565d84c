"""Random models of two layers, ours and transformers', small enough to run in milliseconds.

Weights are larger than a fresh model's and norms and biases are not the neutral 1 and 0, so that a
dropped norm, bias or layer moves logits by far more than any tolerance.
"""

from dataclasses import replace
from pathlib import Path

import torch

from zerogap.models import CausalLM, ModelConfig, Precision, RopeScaling, config_to_hf

FAMILIES = ("llama", "qwen2", "qwen3")

LLAMA3_SCALING = RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_positions=64)
"""With head_dim 16 some waves are kept, some divided and some in between."""

_BASE = ModelConfig(
    family="llama",
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=256,
    eos_token_ids=(2,),
    bos_token_id=1,
)
"""The heads together are wider than the model (as in Qwen3), and no size equals another.

No padding id: transformers gives the embedding of that id no gradient, which is wrong when it equals the
end-of-sequence id (as in SmolLM2), so ours does not copy it.
"""


def tiny_config(family: str = "llama", **changes) -> ModelConfig:
    """The config of a two-layer model of 97 ids; ``changes`` are fields of ModelConfig."""
    return replace(_BASE, family=family, **changes)


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Weights whose logits spread by about 1 to 2: matrices N(0, 0.2), norms 1 + N(0, 0.2), biases N(0, 0.2)."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.normal_(0.0, 0.2, generator=generator)
        if parameter.dim() == 1 and not name.endswith("bias"):
            parameter.add_(1.0)


def tiny_model(
    family: str = "llama", *, seed: int = 0, precision: Precision = "fp32", **changes
) -> CausalLM:
    """Our model with random weights; the same arguments give the same weights, in bf16 rounded ones."""
    model = CausalLM(tiny_config(family, **changes), precision=precision)
    randomize(model, seed)
    return model.round_weights_()


def transformers_model(config: ModelConfig, *, seed: int = 0) -> torch.nn.Module:
    """transformers' model of this config with random fp32 weights (not those of ``tiny_model``)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    hf_config = AutoConfig.for_model(**config_to_hf(config))
    model = AutoModelForCausalLM.from_config(
        hf_config, dtype=torch.float32, attn_implementation="eager"
    )
    randomize(model, seed)
    return model.eval()


def save_transformers_model(model: torch.nn.Module, folder: Path, **options) -> Path:
    """Save with transformers' own code; ``options`` go to save_pretrained (``max_shard_size``)."""
    model.save_pretrained(folder, **options)
    return folder


def load_transformers_model(folder: Path) -> torch.nn.Module:
    """What transformers makes of a folder, in fp32 with plain attention."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of each parameter, by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}
