import json

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_config, tiny_model
from helpers.tolerance import EXACT
from safetensors.torch import load_file, save_file

from zerogap.errors import ModelError
from zerogap.models import CausalLM, export_hf, hf_tensors, load_model

WEIGHTS = "model.safetensors"
METADATA = {"format": "pt"}


@pytest.fixture
def folder(tmp_path):
    return export_hf(tiny_model(seed=4), tmp_path / "model")


@pytest.fixture
def tied_folder(tmp_path):
    return export_hf(tiny_model(seed=4, tie_word_embeddings=True), tmp_path / "tied")


def edit(folder, change) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata=METADATA)


def test_every_wrong_tensor_is_named_at_once(folder):
    def break_it(tensors):
        del tensors["model.layers.0.mlp.up_proj.weight"]
        del tensors["model.norm.weight"]
        tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(64)
        tensors["lm_head.weight"] = torch.zeros(96, 32)

    edit(folder, break_it)
    with pytest.raises(ModelError) as error:
        load_model(folder)
    message = str(error.value)
    assert "2 missing: model.layers.0.mlp.up_proj.weight, model.norm.weight" in message
    assert "1 surplus: model.layers.0.self_attn.q_proj.bias" in message
    assert "1 of another shape: lm_head.weight [96, 32] instead of [97, 32]" in message


def test_harmless_extras_are_ignored(tied_folder):
    def add(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit(tied_folder, add)
    expected = dict(hf_tensors(tiny_model(seed=4, tie_word_embeddings=True)))
    EXACT.check(dict(hf_tensors(load_model(tied_folder).model)), expected)


def test_a_tied_head_that_differs_from_the_embedding_is_refused(tied_folder):
    edit(tied_folder, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(97, 32)}))
    with pytest.raises(ModelError, match=r"lm_head\.weight differs from model\.embed"):
        load_model(tied_folder)


def test_a_stored_type_that_is_no_plain_float_is_refused(folder):
    name = "model.layers.1.mlp.down_proj.weight"
    edit(folder, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    with pytest.raises(ModelError, match=r"down_proj.weight \(F8_E4M3\)"):
        load_model(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_checkpoint_that_is_not_finite_is_refused(folder, value):
    edit(folder, lambda tensors: tensors["model.norm.weight"][3:4].fill_(value))
    with pytest.raises(ModelError, match=r"NaN or infinity in \['model.norm.weight'\]"):
        load_model(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = export_hf(tiny_model(), tmp_path / "model", max_shard_bytes=20_000)
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ModelError, match=f"lacks weight files .*{shard.name}"):
        load_model(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    folder = export_hf(tiny_model(), tmp_path / "model", max_shard_bytes=20_000)
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    both = load_file(first) | load_file(second)
    save_file(both, second, metadata=METADATA)
    with pytest.raises(ModelError, match=r"more than one file: .*model.embed_tokens.weight"):
        load_model(folder)


def test_a_truncated_file_is_refused(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        load_model(folder)


def test_pickled_weights_are_refused_with_the_cure(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model.bin.*convert"):
        load_model(folder)


def test_a_folder_without_or_with_a_broken_config_is_refused(folder):
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(ModelError, match="not readable as JSON"):
        load_model(folder)
    (folder / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="holds a list, not an object"):
        load_model(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config.json"):
        load_model(folder)


def test_end_ids_come_from_both_files(folder):
    content = json.loads((folder / "generation_config.json").read_text())
    content |= {"eos_token_id": [2, 11], "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(content))
    loaded = load_model(folder)
    assert loaded.model.config.eos_token_ids == (2, 11)
    assert loaded.generation["temperature"] == 0.7
    (folder / "generation_config.json").unlink()
    assert load_model(folder).model.config.eos_token_ids == (2,)


def test_a_bf16_model_rounds_once_what_it_loads(folder):
    loaded, plain = load_model(folder, precision="bf16"), load_model(folder)
    assert loaded.model.is_bf16
    assert not plain.model.is_bf16
    for name, parameter in plain.model.named_parameters():
        expected = parameter.detach().bfloat16().float()
        EXACT.check(dict(loaded.model.named_parameters())[name], expected)
        with planted_fault(f"{name} as it was stored"):
            EXACT.check(parameter, expected)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ModelError, match=r"precision = 'bfloat16' .* use 'fp32' or 'bf16'"):
        CausalLM(tiny_config(), precision="bfloat16")
