import dataclasses

import pytest
from helpers.tiny_models import FAMILIES, LLAMA3_SCALING, tiny_config

from zerogap.errors import ModelError
from zerogap.models import RopeScaling, config_from_hf, config_to_hf

LLAMA = config_to_hf(tiny_config("llama"))
QWEN2 = config_to_hf(tiny_config("qwen2"))
QWEN3 = config_to_hf(tiny_config("qwen3"))
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scaling", [None, LLAMA3_SCALING, RopeScaling("linear", 2.0)])
@pytest.mark.parametrize("eos", [(), (2,), (2, 5, 96)])
def test_config_survives_the_round_trip_through_hugging_face(family, scaling, eos):
    config = tiny_config(family, rope_scaling=scaling, eos_token_ids=eos, pad_token_id=2)
    assert config_from_hf(config_to_hf(config)) == config


def test_old_and_new_rope_spelling_say_the_same():
    plain = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling")}
    old = plain | {"rope_theta": 500.0, "rope_scaling": LLAMA3_ROPE}
    older_type = {k: v for k, v in LLAMA3_ROPE.items() if k != "rope_type"} | {"type": "llama3"}
    oldest = plain | {"rope_theta": 500.0, "rope_scaling": older_type}
    new = plain | {"rope_parameters": LLAMA3_ROPE | {"rope_theta": 500.0}}
    configs = [config_from_hf(hf) for hf in (old, oldest, new)]
    assert configs[0].rope_scaling == LLAMA3_SCALING
    assert configs[0].rope_theta == 500.0
    assert configs[0] == configs[1] == configs[2]


def test_rope_without_scaling_in_both_spellings():
    plain = {k: v for k, v in LLAMA.items() if k not in ("rope_theta", "rope_scaling")}
    new = config_from_hf(plain | {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})
    old = config_from_hf(plain | {"rope_theta": 7.0, "rope_scaling": None})
    assert new == old
    assert new.rope_scaling is None
    assert config_from_hf(plain).rope_theta == 10000.0


def test_the_context_of_pretraining_may_stand_beside_the_rope_parameters():
    rope = {k: v for k, v in LLAMA3_ROPE.items() if k != "original_max_position_embeddings"}
    beside = config_from_hf(LLAMA | {"rope_scaling": rope, "original_max_position_embeddings": 32})
    assert beside.rope_scaling.original_max_positions == 32
    absent = config_from_hf(LLAMA | {"rope_scaling": rope})
    assert absent.rope_scaling.original_max_positions == LLAMA["max_position_embeddings"]


def test_end_ids_of_both_files_count_once_each():
    hf = LLAMA | {"eos_token_id": 7}
    assert config_from_hf(hf, {"eos_token_id": [9, 7, 8]}).eos_token_ids == (7, 9, 8)
    assert config_from_hf(hf, {"eos_token_id": None}).eos_token_ids == (7,)
    assert config_from_hf(hf | {"eos_token_id": None}, {"eos_token_id": 3}).eos_token_ids == (3,)


def test_sizes_that_old_configs_leave_out():
    old = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "head_dim")}
    config = config_from_hf(old)
    assert (config.num_kv_heads, config.head_dim) == (4, 8)
    qwen3 = config_from_hf({k: v for k, v in QWEN3.items() if k != "head_dim"})
    assert qwen3.head_dim == 128


@pytest.mark.parametrize(
    ("hf", "named"),
    [
        (LLAMA | {"attention_bias": True}, ["attention_bias = True"]),
        (QWEN3 | {"attention_bias": True}, ["attention_bias = True"]),
        (LLAMA | {"mlp_bias": True}, ["mlp_bias = True"]),
        (LLAMA | {"hidden_act": "gelu"}, ["hidden_act = 'gelu'", "silu"]),
        (LLAMA | {"quantization_config": {"bits": 4}}, ["quantization_config", "bits"]),
        (LLAMA | {"partial_rotary_factor": 0.5}, ["partial_rotary_factor = 0.5"]),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["'yarn'", "llama3"]),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, ["low_freq_factor"]),
        (LLAMA | {"rope_scaling": {"rope_type": "linear"}}, ["factor"]),
        (LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 0}}, ["factor = 0"]),
        (LLAMA | {"rope_parameters": {"full_attention": {}}}, ["full_attention"]),
        (
            QWEN2 | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            ["sliding_window = 64", "use_sliding_window"],
        ),
        (QWEN3 | {"layer_types": ["full_attention", "sliding_attention"]}, ["sliding_attention"]),
        (LLAMA | {"model_type": "gemma3"}, ["'gemma3'", "llama", "qwen2", "qwen3"]),
        ({}, ["no model_type", "export/"]),
        (
            {k: v for k, v in LLAMA.items() if k not in ("hidden_size", "rms_norm_eps")},
            ["hidden_size", "rms_norm_eps"],
        ),
        (LLAMA | {"mlp_bias": True, "attention_bias": True}, ["mlp_bias", "attention_bias"]),
    ],
)
def test_what_cannot_be_computed_is_refused_by_key_and_value(hf, named):
    with pytest.raises(ModelError) as error:
        config_from_hf(hf)
    for part in named:
        assert part in str(error.value)


def test_a_sliding_window_that_no_layer_uses_is_no_obstacle():
    off = QWEN2 | {"use_sliding_window": False, "sliding_window": 64}
    beyond = QWEN2 | {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}
    assert config_from_hf(off) == config_from_hf(beyond) == config_from_hf(QWEN2)


def test_qwen2_has_no_attention_bias_switch():
    assert config_from_hf(QWEN2 | {"attention_bias": True}) == config_from_hf(QWEN2)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_heads": 3}, "num_kv_heads = 2"),
        ({"head_dim": 7}, "head_dim = 7"),
        ({"num_layers": 0}, "num_layers = 0"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps = 0.0"),
        ({"eos_token_ids": (2, 97)}, "eos_token_ids = (2, 97)"),
        ({"bos_token_id": -1}, "bos_token_id = -1"),
        ({"pad_token_id": 97}, "pad_token_id = 97"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(changes, named):
    with pytest.raises(ModelError) as error:
        tiny_config(**changes)
    assert named in str(error.value)


def test_a_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_config().num_layers = 3
