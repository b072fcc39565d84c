"""A real but small measurement: a tiny model, and only the alternative that is always installed."""

import json
from pathlib import Path

import pytest
from helpers.commands import zerogap_process
from helpers.tiny_models import tiny_model

from zerogap.data import byte_tokenizer
from zerogap.data.byte_tokenizer import BYTE_VOCAB_SIZE, EOS_TOKEN_ID
from zerogap.models import export_hf

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = tiny_model(
        "llama", vocab_size=BYTE_VOCAB_SIZE, eos_token_ids=(EOS_TOKEN_ID,), max_positions=512
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return str(export_hf(model, folder, save_tokenizer=byte_tokenizer().save))


def bench(*arguments: str, model: str, tmp_path: Path) -> tuple[str, dict]:
    found = tmp_path / "found.json"
    options = ("--model", model, "--threads", "2", "--repeats", "1", "--json", found)
    done = zerogap_process("bench", *arguments, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(found.read_text())


def test_a_rollout_beside_transformers(model_folder: str, tmp_path: Path):
    arguments = ("rollout", "--shapes", "1x1x4,2x3x4", "--peers", "transformers")
    shown, report = bench(*arguments, model=model_folder, tmp_path=tmp_path)
    single, several = report["rollout"]["shapes"]
    assert (single["shape"], several["shape"]) == ("1x1x4", "2x3x4")
    assert several["tokens_per_s"] == pytest.approx(24 / several["seconds"])
    assert several["ratio_to_transformers"] == min(
        peer["ratio"]["median"] for peer in several["peers"].values()
    )
    assert set(several["phases"]) == {"generate"}
    decoding = single["decoding"]
    assert decoding["share_of_read"] == pytest.approx(decoding["gb_s"] / decoding["read_gb_s"])
    assert decoding["gb_s"] == pytest.approx(
        decoding["bytes_per_token"] / decoding["ms_per_token"]["median"] / 1e6
    )
    assert "transformers, with log-probs" in shown
    assert report["threads"] == 2


def test_a_step(model_folder: str, tmp_path: Path):
    arguments = ("step", "--shapes", "2x2x4", "--peers", "none")
    shown, report = bench(*arguments, model=model_folder, tmp_path=tmp_path)
    (step,) = report["step"]["shapes"]
    assert set(step["phases"]) == {"generate", "train"}
    assert sum(p["seconds"] for p in step["phases"].values()) <= step["seconds"]
    assert step["num_training_rows"] > 0
    assert "under the roofline" in shown


def test_scaling(model_folder: str, tmp_path: Path):
    scaling = ("scaling", "--sequences", "2,4", "--contexts", "32,600", "--group-size", "2")
    shown, report = bench(*scaling, model=model_folder, tmp_path=tmp_path)
    assert [(c["num_sequences"], c["context"]) for c in report["scaling"]["cells"]] == [(2, 32), (4, 32)]  # fmt: skip
    assert "4 sequences, context 600: left out; the model supports at most 512 tokens" in shown


def test_numerics_and_limit(model_folder: str, tmp_path: Path):
    numerics = ("numerics", "--shapes", "1x2x3")
    _, report = bench(*numerics, model=model_folder, tmp_path=tmp_path)
    found = report["numerics"]
    assert found["ratio"]["median"] == pytest.approx(found["exact"]["median"] / found["fast"]["median"])  # fmt: skip
    assert found["bf16_ratio"]["median"] == pytest.approx(found["bf16"]["median"] / found["exact"]["median"])  # fmt: skip
    assert "numerics: fast, GEMMs timed on" in found["settled"]["fast"]
    assert ", bf16; numerics: exact" in found["settled"]["bf16"]
    _, report = bench("limit", "--rows", "8", model=model_folder, tmp_path=tmp_path)
    (rows,) = report["limit"]["rows"]
    assert set(rows["by"]) == {"blas", "zerogap", "the faster (the limit)"}
