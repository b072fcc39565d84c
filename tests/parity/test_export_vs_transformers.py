"""What we export, transformers loads as the same model, bit for bit."""

import json
import shutil

import pytest
import torch
from helpers.gguf_vocabulary import TEXTS, save_as_gguf, trained_tokenizer
from helpers.packed_rows import PackedRows
from helpers.planted_fault import nudged, planted_fault
from helpers.tiny_models import (
    LLAMA3_SCALING,
    load_transformers_model,
    save_transformers_model,
    tiny_config,
    tiny_model,
    transformers_model,
)
from helpers.tolerance import EXACT

from zerogap.data import write_tokenizer_files
from zerogap.models import RopeScaling, export_hf, hf_tensors, load_model

CASES = {
    "llama-llama3-rope": tiny_config("llama", rope_scaling=LLAMA3_SCALING, eos_token_ids=(2, 5)),
    "llama-linear-rope": tiny_config("llama", rope_scaling=RopeScaling("linear", 2.0)),
    "qwen2-tied": tiny_config("qwen2", tie_word_embeddings=True, bos_token_id=None),
    "qwen3": tiny_config("qwen3", eos_token_ids=()),
}
TOKEN_IDS = [[5, 17, 96, 1, 1, 30, 2, 64, 11]]


@pytest.fixture(params=CASES)
def original(request, tmp_path):
    theirs = transformers_model(CASES[request.param], seed=5)
    save_transformers_model(theirs, tmp_path / "original")
    return theirs, load_model(tmp_path / "original").model


@torch.no_grad()
@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000], ids=["one file", "shards"])
def test_logits_and_weights_survive_load_and_export_bit_for_bit(
    original, tmp_path, max_shard_bytes
):
    theirs, ours = original
    folder = export_hf(ours, tmp_path / "export", max_shard_bytes=max_shard_bytes)
    assert (folder / "model.safetensors.index.json").exists() == (max_shard_bytes < 10**9)
    reloaded = load_transformers_model(folder)
    EXACT.check(dict(reloaded.named_parameters()), dict(theirs.named_parameters()))
    expected = theirs(torch.tensor(TOKEN_IDS)).logits
    EXACT.check(reloaded(torch.tensor(TOKEN_IDS)).logits, expected)
    with planted_fault("one weight moved by one unit in the last place"):
        reloaded.lm_head.weight.copy_(nudged(reloaded.lm_head.weight))
        EXACT.check(dict(reloaded.named_parameters()), dict(theirs.named_parameters()))


@torch.no_grad()
def test_our_own_reload_is_the_same_model(original, tmp_path):
    _, ours = original
    again = load_model(export_hf(ours, tmp_path / "export", max_shard_bytes=20_000)).model
    assert again.config == ours.config
    EXACT.check(dict(hf_tensors(again)), dict(hf_tensors(ours)))
    rows = PackedRows(TOKEN_IDS)
    EXACT.check(rows.logits(again), rows.logits(ours))


def test_transformers_reads_the_special_ids_that_we_write(original, tmp_path):
    _, ours = original
    folder = export_hf(ours, tmp_path / "export")
    theirs = load_transformers_model(folder)
    declared = theirs.generation_config.eos_token_id
    declared = [declared] if isinstance(declared, int) else (declared or [])
    assert tuple(declared) == ours.config.eos_token_ids
    assert theirs.config.bos_token_id == ours.config.bos_token_id
    assert theirs.config.tie_word_embeddings == ours.config.tie_word_embeddings


def test_an_index_names_every_tensor_and_the_total_size(original, tmp_path):
    _, ours = original
    folder = export_hf(ours, tmp_path / "export", max_shard_bytes=20_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    views = dict(hf_tensors(ours))
    assert index["weight_map"].keys() == views.keys()
    assert index["metadata"]["total_size"] == sum(view.nbytes for view in views.values())
    assert {(folder / name).exists() for name in index["weight_map"].values()} == {True}


@pytest.mark.parametrize(
    ("family", "pre"),
    [("llama", "smollm"), ("llama", "llama-bpe"), ("qwen2", "qwen2"), ("qwen3", "qwen2")],
)
def test_transformers_tokenizes_in_the_exported_folder_as_the_original(tmp_path, family, pre):
    # Beside a config.json transformers may choose its own tokenizer class for the family.
    from transformers import AutoTokenizer

    original = trained_tokenizer(pre)
    written = tmp_path / "tokenizer"
    write_tokenizer_files(save_as_gguf(tmp_path / "v.gguf", original, pre), written)
    folder = export_hf(
        tiny_model(family, vocab_size=400),
        tmp_path / "export",
        save_tokenizer=lambda to: shutil.copytree(written, to, dirs_exist_ok=True),
    )
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    for text in TEXTS:
        assert theirs(text).input_ids == original.encode(text).ids, text
    assert len(theirs) == original.get_vocab_size()
