"""Our forward and backward against transformers, fp32, weights through the real loader.

Ours runs two sequences packed into one row dimension; transformers runs each alone. Equal logits and
gradients therefore also say that positions restart and that nothing attends across sequences.
"""

import copy

import numpy as np
import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import assert_notices, planted_fault, scaled
from helpers.tiny_models import (
    LLAMA3_SCALING,
    load_transformers_model,
    save_transformers_model,
    tiny_config,
    transformers_model,
)
from helpers.tolerance import EXACT, FP32_MODEL, FP32_MODEL_GRADIENT

from zerogap import kernels
from zerogap.models import CausalLM, RopeScaling, hf_tensors, load_model
from zerogap.models.names import tensor_rows

CASES = {
    "llama": tiny_config("llama"),
    "llama-tied-llama3-rope": tiny_config(
        "llama", tie_word_embeddings=True, rope_scaling=LLAMA3_SCALING, rope_theta=500.0
    ),
    "llama-linear-rope": tiny_config("llama", rope_scaling=RopeScaling("linear", 4.0)),
    "qwen2": tiny_config("qwen2"),
    "qwen2-tied-one-kv-head": tiny_config("qwen2", tie_word_embeddings=True, num_kv_heads=1),
    "qwen3": tiny_config("qwen3"),
    "qwen3-tied-odd-head": tiny_config("qwen3", tie_word_embeddings=True, head_dim=10),
}
SEQUENCES = (
    np.random.default_rng(7).integers(0, 97, 41).tolist(),
    np.random.default_rng(8).integers(0, 97, 19).tolist(),
)


@pytest.fixture(params=CASES, scope="module")
def pair(request, tmp_path_factory):
    """(ours, transformers'): the same random weights, saved by theirs and loaded by ours."""
    config = CASES[request.param]
    theirs = transformers_model(config, seed=3)
    folder = save_transformers_model(theirs, tmp_path_factory.mktemp("model"))
    ours = load_model(folder).model
    assert ours.config == config
    return ours, theirs


def their_logits(theirs: torch.nn.Module, sequences=SEQUENCES) -> torch.Tensor:
    return torch.cat([theirs(torch.tensor([list(ids)])).logits[0] for ids in sequences])


def ours_gradients(model: CausalLM) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters())
    rows = tensor_rows(model.config)
    return {r.hf_name: parameters[r.parameter].grad[r.start : r.end] for r in rows}


def loss(logits_TV: torch.Tensor) -> torch.Tensor:
    """Mean negative log-prob of each sequence's own next tokens; no target across sequences."""
    token_ids = [i for ids in SEQUENCES for i in ids]
    ends = set(np.cumsum([len(ids) for ids in SEQUENCES]) - 1)
    rows = [t for t in range(len(token_ids)) if t not in ends]
    targets = torch.tensor([token_ids[t + 1] for t in rows])
    return torch.nn.functional.cross_entropy(logits_TV[rows], targets)


@torch.no_grad()
def test_logits_agree(pair):
    ours, theirs = pair
    expected = their_logits(theirs)
    assert expected.std() > 0.5, "logits that hardly differ would agree by chance"
    FP32_MODEL.check(PackedRows(SEQUENCES).logits(ours), expected)


@torch.no_grad()
def test_a_weight_scaled_by_a_percent_is_noticed_in_every_tensor(pair):
    ours, theirs = copy.deepcopy(pair[0]), pair[1]
    expected, rows = their_logits(theirs), PackedRows(SEQUENCES)
    for name, view in hf_tensors(ours):
        healthy = view.clone()
        view[::2] *= 1.01  # all rows of a query projection would be undone by a query norm
        assert_notices(
            f"{name} scaled by 1.01", lambda: FP32_MODEL.check(rows.logits(ours), expected)
        )
        view.copy_(healthy)
    ours.layers[0].down.weight.copy_(scaled(ours.layers[0].down.weight))
    with planted_fault("a single element of one matrix scaled by 1.01"):
        FP32_MODEL.check(rows.logits(ours), expected)


@torch.no_grad()
def test_a_position_off_by_one_is_noticed(pair):
    ours, theirs = pair
    rows = PackedRows(SEQUENCES)
    rows.positions_T[30:41] += 1
    with planted_fault("positions of the last 11 tokens of the first sequence off by one"):
        FP32_MODEL.check(rows.logits(ours), their_logits(theirs))


@torch.no_grad()
def test_one_leaking_token_is_noticed(pair):
    ours, theirs = pair
    rows = PackedRows(SEQUENCES)
    rows.leak(12)
    with planted_fault("row 12 sees key 13"):
        FP32_MODEL.check(rows.logits(ours), their_logits(theirs))


@torch.no_grad()
def test_attention_across_packed_sequences_is_noticed(pair):
    ours, theirs = pair
    rows, joined = PackedRows(SEQUENCES), PackedRows([SEQUENCES[0] + SEQUENCES[1]])
    rows.layout = joined.layout
    with planted_fault("two packed sequences treated as one"):
        FP32_MODEL.check(rows.logits(ours), their_logits(theirs))


def test_gradients_agree(pair):
    ours, theirs = pair
    ours.zero_grad()
    theirs.zero_grad()
    loss(PackedRows(SEQUENCES).logits(ours)).backward()
    loss(their_logits(theirs)).backward()
    gradients = ours_gradients(ours)
    # A tied head is one parameter on both sides; its gradient has both parts.
    expected = {n: p.grad for n, p in theirs.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name in gradients:
        FP32_MODEL_GRADIENT.check(gradients[name], expected[name], name)
    with planted_fault("one gradient element scaled by 1.01"):
        name = "model.layers.0.mlp.up_proj.weight"
        FP32_MODEL_GRADIENT.check(scaled(gradients[name]), expected[name])


def test_recomputation_changes_no_bit_of_logits_or_gradients(pair):
    ours, _ = pair
    results = []
    for recompute in (False, True):
        ours.zero_grad()
        logits = PackedRows(SEQUENCES).logits(ours, recompute=recompute)
        loss(logits).backward()
        results.append((logits, [p.grad.clone() for p in ours.parameters()]))
    EXACT.check(results[1], results[0])


@torch.no_grad()
@pytest.mark.parametrize("fault", ["norms left out", "key norm weight left out"])
def test_a_missing_query_key_norm_is_noticed(monkeypatch, tmp_path, fault):
    theirs = transformers_model(CASES["qwen3"], seed=3)
    ours = load_model(save_transformers_model(theirs, tmp_path)).model
    if fault == "norms left out":
        healthy = kernels.qkv_rope
        monkeypatch.setattr(
            kernels, "qkv_rope", lambda x, c, s, q, k, **rest: healthy(x, c, s, None, None, **rest)
        )
    else:
        ours.layers[1].k_norm.weight.fill_(1.0)
    with planted_fault(fault):
        FP32_MODEL.check(PackedRows(SEQUENCES).logits(ours), their_logits(theirs))


@torch.no_grad()
def test_bf16_and_fp16_checkpoints_load_as_the_same_numbers_in_fp32(tmp_path):
    for dtype in (torch.bfloat16, torch.float16):
        theirs = transformers_model(CASES["qwen2"], seed=3).to(dtype)
        folder = save_transformers_model(theirs, tmp_path / str(dtype))
        ours = load_model(folder).model
        EXACT.check(dict(hf_tensors(ours)), {n: p.float() for n, p in theirs.named_parameters()})
        FP32_MODEL.check(
            PackedRows(SEQUENCES).logits(ours), their_logits(load_transformers_model(folder))
        )
