"""Our bf16 against transformers' own: they round at different places, so the difference is bounded, not zero.

Ours rounds the result of an operation; theirs also rounds within operations (each product of a norm, cosines, the
residual twice). Both are compared with fp32 on the same rounded weights: ours must be nearer.
"""

import copy
import json

import numpy as np
import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_models import (
    FAMILIES,
    save_transformers_model,
    tiny_config,
    tiny_model,
    transformers_model,
)
from helpers.tolerance import BF16_MODEL, BF16_MODEL_GRADIENT, EXACT

from zerogap.models import export_hf, hf_tensors, load_model
from zerogap.models.names import tensor_rows

SEQUENCES = tuple(
    np.random.default_rng(seed).integers(0, 97, length).tolist() for seed, length in ((7, 41), (8, 19))
)  # fmt: skip


@pytest.fixture(params=FAMILIES, scope="module")
def trio(request, tmp_path_factory):
    """(ours in bf16, transformers' in bf16, transformers' in fp32), all with the same bf16 weights."""
    theirs = transformers_model(tiny_config(request.param), seed=3)
    folder = save_transformers_model(theirs, tmp_path_factory.mktemp("model"))
    theirs = theirs.bfloat16()
    return load_model(folder, precision="bf16").model, theirs, copy.deepcopy(theirs).float()


def their_logits(theirs) -> torch.Tensor:
    return torch.cat([theirs(torch.tensor([ids])).logits[0] for ids in SEQUENCES]).float()


def loss(logits_TV: torch.Tensor) -> torch.Tensor:
    """Mean negative log-prob of each sequence's own next tokens."""
    targets = torch.tensor([i for ids in SEQUENCES for i in (*ids[1:], -100)])
    return torch.nn.functional.cross_entropy(logits_TV, targets)


def our_gradients(model) -> dict[str, torch.Tensor]:
    parameters = dict(model.named_parameters())
    return {
        row.hf_name: parameters[row.parameter].grad[row.start : row.end]
        for row in tensor_rows(model.config)
    }


@torch.no_grad()
def test_logits_agree_and_ours_are_nearer_to_fp32(trio):
    ours, theirs, fp32 = trio
    mine, expected, truth = PackedRows(SEQUENCES).logits(ours), their_logits(theirs), their_logits(fp32)  # fmt: skip
    BF16_MODEL.check(mine, expected)
    assert 0 < (mine - truth).abs().mean() < (expected - truth).abs().mean()


@torch.no_grad()
@pytest.mark.parametrize("fault", ["a position", "a leak", "a norm"])
def test_a_fault_is_noticed(trio, fault):
    ours, theirs, _ = trio
    ours, rows = copy.deepcopy(ours), PackedRows(SEQUENCES)
    if fault == "a position":
        rows.positions_T[30:41] += 1
    elif fault == "a leak":
        rows.leak(12)
    else:
        ours.norm.weight *= 1.02
    with planted_fault(fault):
        BF16_MODEL.check(rows.logits(ours), their_logits(theirs))


def test_gradients_agree(trio):
    ours, theirs, _ = trio
    ours.zero_grad()
    theirs.zero_grad()
    loss(PackedRows(SEQUENCES).logits(ours)).backward()
    loss(their_logits(theirs)).backward()
    gradients = our_gradients(ours)
    expected = {name: p.grad.float() for name, p in theirs.named_parameters()}
    for name in expected:
        BF16_MODEL_GRADIENT.check(gradients[name], expected[name])
        with planted_fault(f"the gradient of {name} a tenth too large"):
            BF16_MODEL_GRADIENT.check(1.1 * gradients[name], expected[name])


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_an_exported_bf16_model_is_the_same_for_transformers_and_for_us(family, tmp_path):
    from transformers import AutoModelForCausalLM

    ours = tiny_model(family, precision="bf16")
    folder = export_hf(ours, tmp_path / "export", max_shard_bytes=20_000)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", attn_implementation="eager"
    ).eval()
    stored = dict(theirs.named_parameters())
    EXACT.check(stored, {name: view.bfloat16() for name, view in hf_tensors(ours)})
    rows = PackedRows(SEQUENCES)
    BF16_MODEL.check(rows.logits(ours), their_logits(theirs))
    again = load_model(folder, precision="bf16").model
    EXACT.check(rows.logits(again), rows.logits(ours))
    with planted_fault("reloaded in fp32"):
        EXACT.check(rows.logits(load_model(folder).model), rows.logits(ours))
