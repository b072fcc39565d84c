import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.config.engine import EngineConfig
from zerogap.config.model import ModelInit, ModelSection
from zerogap.kernels import round_bf16
from zerogap.models import export_hf
from zerogap.run.policy import load_policy

INIT = ModelInit(
    hidden_size=32, intermediate_size=48, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16
)


def policy(dtype="fp32"):
    return load_policy(ModelSection(init=INIT, tokenizer="byte", dtype=dtype), seed=3)


def parameters(model) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in model.named_parameters()}


def test_a_policy_has_the_sections_precision():
    plain, rounded = policy(), policy("bf16")
    assert (plain.model.precision, rounded.model.precision) == ("fp32", "bf16")
    expected = {name: round_bf16(p) for name, p in parameters(plain.model).items()}
    EXACT.check(parameters(rounded.model), expected)
    with planted_fault("weights that are not rounded"):
        EXACT.check(parameters(plain.model), expected)


def test_a_pretrained_policy_has_the_sections_precision(tmp_path):
    plain = policy()
    folder = export_hf(plain.model, tmp_path / "model", save_tokenizer=plain.tokenizer.save)
    loaded = load_policy(ModelSection(path=str(folder), dtype="bf16"), seed=0)
    EXACT.check(parameters(loaded.model), parameters(policy("bf16").model))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_engine_may_have_a_copy_in_its_own_precision(precision):
    owner = policy()
    copy = owner.model.copied(precision=precision)
    engine = owner.engine(EngineConfig(kv_cache_tokens=64), model=copy)
    assert engine._runner._model is copy
    assert owner.engine(EngineConfig(kv_cache_tokens=64))._runner._model is owner.model
    for name, p in parameters(owner.model).items():
        mine = parameters(copy)[name]
        assert mine.data_ptr() != p.data_ptr()
        EXACT.check(mine, p if precision == "fp32" else round_bf16(p))


def test_the_fastest_products_are_timed_at_each_sides_number_of_rows():
    found = policy().fastest_gemm(engine_rows=4, trainer_rows=2048)
    assert (found.engine.num_rows, found.trainer.num_rows) == (4, 512)
    assert "engine, 4 rows: exact" in str(found)
