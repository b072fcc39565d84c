"""In a benchmark llama.cpp runs the same model as zerogap: its tokens have the engine's log-probs.

Up to its 16-bit keys and values. Needs llama-cpp-python.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import KV_16_BIT

from zerogap.engine import Engine
from zerogap.models import CausalLM
from zerogap_bench import gguf_file
from zerogap_bench.flops import ModelShape
from zerogap_bench.prepare import Prepared
from zerogap_bench.shapes import RunShape

if importlib.util.find_spec("llama_cpp") is None:
    pytest.skip(
        "llama-cpp-python is not installed: only benchmarks need it", allow_module_level=True
    )
# Its binding leaves files open.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

SHAPE = RunShape(2, 3, 4)
PROMPTS = tuple(tuple(range(3 + i, 60 - 7 * i)) for i in range(SHAPE.num_prompts))


def llama_cpp_rollout(model: CausalLM, path: Path) -> tuple[np.ndarray, np.ndarray]:
    from zerogap_bench.sides.llama_cpp_side import LlamaCppRollout

    gguf_file.write_gguf(model, path)
    prepared = Prepared(
        model="",
        folder="",
        gguf=str(path),
        prompt_texts=(),
        prompt_ids=PROMPTS,
        shape=ModelShape.from_config(model.config, vocab_size=model.config.vocab_size),
        max_positions=model.config.max_positions,
        threads=2,
        kernels="",
    )
    return LlamaCppRollout(prepared=prepared, shapes=[SHAPE]).generate(SHAPE, seed=3)


def scores(model: CausalLM, ids_BT: np.ndarray) -> np.ndarray:
    engine = Engine(model, kv_cache_tokens=1024, eos_token_ids=())
    rows = []
    for sequence, ids in enumerate(ids_BT.tolist()):
        prompt = PROMPTS[sequence // SHAPE.group_size]
        rows.append(engine.score((*prompt, *ids), start=len(prompt)))
    return np.stack(rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_llama_cpp_vs_the_engine(family: str, tmp_path: Path):
    # Its fast attention takes heads of 32 and more; its qwen2 only heads whose sum is the model's width.
    model = tiny_model(family, hidden_size=128, head_dim=32, tie_word_embeddings=True)
    ids_BT, log_probs_BT = llama_cpp_rollout(model, tmp_path / "model.gguf")
    assert ids_BT.shape == (SHAPE.num_sequences, SHAPE.max_new_tokens)
    assert len({tuple(ids) for ids in ids_BT[:3].tolist()}) > 1, "siblings draw for themselves"
    KV_16_BIT.check(log_probs_BT, scores(model, ids_BT))
    with planted_fault("log-probs of the siblings' tokens"):
        KV_16_BIT.check(log_probs_BT, scores(model, np.roll(ids_BT, 1, axis=0)))


def test_the_rows_of_q_and_k_go_into_the_other_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = tiny_model("llama", hidden_size=128, head_dim=32, tie_word_embeddings=True)
    monkeypatch.setattr(gguf_file, "_pairs_from_halves", lambda weight, _head_dim: weight)
    ids_BT, log_probs_BT = llama_cpp_rollout(model, tmp_path / "model.gguf")
    with planted_fault("rope turns the wrong pairs"):
        KV_16_BIT.check(log_probs_BT, scores(model, ids_BT))
