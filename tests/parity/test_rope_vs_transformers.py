import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.models import RopeScaling
from zerogap.models.rope import inverse_frequencies


def theirs(head_dim: int, theta: float, scaling: dict) -> torch.Tensor:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        rope_parameters={"rope_theta": theta, **scaling},
    )
    return LlamaRotaryEmbedding(config).inv_freq


@pytest.mark.parametrize(
    ("head_dim", "theta"), [(64, 10000.0), (64, 100000.0), (128, 1e6), (10, 7.0)]
)
def test_frequencies_are_bit_for_bit_those_of_transformers(head_dim, theta):
    plain = inverse_frequencies(head_dim, theta, None)
    EXACT.check(plain, theirs(head_dim, theta, {"rope_type": "default"}))
    linear = inverse_frequencies(head_dim, theta, RopeScaling("linear", 3.0))
    EXACT.check(linear, theirs(head_dim, theta, {"rope_type": "linear", "factor": 3.0}))
    with planted_fault("no scaling"):
        EXACT.check(plain, linear)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_frequencies_are_bit_for_bit_those_of_transformers(factor):
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    ours = inverse_frequencies(128, 500000.0, RopeScaling("llama3", factor))
    EXACT.check(ours, theirs(128, 500000.0, scaling))
