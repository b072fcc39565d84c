import pytest
import torch
from helpers.gguf_files import write_model_gguf, write_vocabulary_gguf
from helpers.planted_fault import planted_fault
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import EXACT

from zerogap.errors import ModelError
from zerogap.models import RopeScaling, hf_tensors, load_model
from zerogap.models.rope import inverse_frequencies

# Rows are multiples of 32, the block of llama.cpp's simple quantisations.
SIZES = {"hidden_size": 64, "intermediate_size": 96}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_tensor_arrives_dequantised_in_its_place(tmp_path, family, is_tied):
    model = tiny_model(family, tie_word_embeddings=is_tied, **SIZES)
    kinds = ("Q8_0", "Q4_1", "F32", "Q4_0", "F16", "BF16")
    expected = write_model_gguf(tmp_path / "m.gguf", model, matrices=kinds)
    loaded = load_model(tmp_path / "m.gguf")
    assert loaded.model.config == model.config
    assert loaded.path == tmp_path / "m.gguf"
    EXACT.check(dict(hf_tensors(loaded.model)), expected)
    with planted_fault("the quantisation is not seen"):
        EXACT.check(dict(hf_tensors(loaded.model)), dict(hf_tensors(model)))


def test_numbers_come_back_as_they_were_meant(tmp_path):
    model = tiny_model(rms_norm_eps=1e-5, rope_theta=100000.0, eos_token_ids=(2, 7, 9), **SIZES)
    write_model_gguf(tmp_path / "m.gguf", model)
    config = load_model(tmp_path / "m.gguf").model.config
    assert config.rms_norm_eps == 1e-5
    assert config.rope_theta == 100000.0
    assert config.eos_token_ids == (2, 7, 9)


def test_linear_rope_scaling_is_read(tmp_path):
    model = tiny_model(rope_scaling=RopeScaling("linear", 4.0), **SIZES)
    metadata = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    write_model_gguf(tmp_path / "m.gguf", model, metadata=metadata)
    assert load_model(tmp_path / "m.gguf").model.config == model.config


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_scaling_is_found_again_from_its_divisors(tmp_path, factor):
    scaling = RopeScaling("llama3", factor)
    model = tiny_model(rope_scaling=scaling, rope_theta=500000.0, head_dim=64, **SIZES)
    divisors = inverse_frequencies(64, 500000.0, None) / inverse_frequencies(64, 500000.0, scaling)
    write_model_gguf(tmp_path / "m.gguf", model, extra={"rope_freqs.weight": divisors})
    assert load_model(tmp_path / "m.gguf").model.config == model.config
    write_model_gguf(tmp_path / "m.gguf", model, extra={"rope_freqs.weight": divisors * 1.01})
    with pytest.raises(ModelError, match=r"rope_freqs.weight .*not llama3"):
        load_model(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"rope.scaling.type": "yarn"}, "'yarn'"),
        ({"expert_count": 8}, "llama.expert_count"),
        ({"attention.sliding_window": 64}, "llama.attention.sliding_window"),
        ({"rope.dimension_count": 8}, "rotates 8 of 16"),
        ({"block_count": None, "context_length": None}, "llama.block_count, llama.context_length"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_key(tmp_path, metadata, named):
    write_model_gguf(tmp_path / "m.gguf", tiny_model(**SIZES), metadata=metadata)
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / "m.gguf")
    assert named in str(error.value)


def test_every_wrong_tensor_is_named_at_once(tmp_path):
    write_model_gguf(
        tmp_path / "m.gguf",
        tiny_model(**SIZES),
        without=["model.norm.weight", "model.layers.0.self_attn.q_proj.weight"],
        extra={"blk.0.attn_q.bias": torch.zeros(64)},
    )
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / "m.gguf")
    assert "2 missing: model.layers.0.self_attn.q_proj.weight, model.norm.weight" in str(
        error.value
    )
    assert "1 surplus: blk.0.attn_q.bias" in str(error.value)


def test_a_model_that_is_not_finite_is_refused(tmp_path):
    model = tiny_model(**SIZES)
    model.norm.weight.data[0] = torch.inf
    write_model_gguf(tmp_path / "m.gguf", model)
    with pytest.raises(ModelError, match=r"NaN or infinity in \['model.norm.weight'\]"):
        load_model(tmp_path / "m.gguf")


def test_files_that_are_no_model_are_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        load_model(path)
    write_model_gguf(path, tiny_model(**SIZES))
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        load_model(path)
    write_vocabulary_gguf(path, architecture="llama", model="gpt2")
    with pytest.raises(ModelError, match=r"lacks .*llama\.block_count"):
        load_model(path)
    write_vocabulary_gguf(path, architecture="gemma3", model="gpt2")
    with pytest.raises(ModelError, match="architecture 'gemma3'"):
        load_model(path)
