"""A family that is only registered works everywhere: recipe, engine, trainer, export, load; with a gap of zero."""

import json
from pathlib import Path

import pytest
import torch
from helpers.engine_samples import ENGINES, PACKINGS, requests, sampled, samples_of, trainer_of
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import prompt, request, tiny_engine
from helpers.tiny_models import randomize, tiny_config
from helpers.tolerance import EXACT
from helpers.toy_family import ToyConfig
from helpers.train_batches import rewarded, train_on

from zerogap.cli import main
from zerogap.errors import ModelError
from zerogap.models import CausalLM, Choices, Precision, export_hf, hf_tensors, load_model
from zerogap.models.names import tensor_rows
from zerogap.obs import read_jsonl

TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"


def toy_model(precision: Precision = "fp32") -> CausalLM:
    model = CausalLM(ToyConfig(**vars(tiny_config("toy"))), precision=precision)
    randomize(model, seed=0)
    return model.round_weights_()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_trainer_scores_what_the_engine_sampled_with_the_same_bits(
    toy_family, precision, engine
):
    model = toy_model(precision)
    outputs = tiny_engine(model, **ENGINES[engine]).generate(requests(0.7))
    samples = samples_of(outputs, 0.7)
    scored = trainer_of(model).score(samples)
    EXACT.check(sampled(scored, samples), [o.output_log_probs for o in outputs])
    with planted_fault("another router"), torch.no_grad():
        model.layers[1].router.weight.copy_(model.layers[1].router.weight.flip(0))
        EXACT.check(sampled(trainer_of(model).score(samples), samples), [o.output_log_probs for o in outputs])  # fmt: skip


@torch.no_grad()
def test_what_the_engine_chose_for_each_row_is_what_a_packed_pass_chooses_and_repeats(
    toy_family, monkeypatch
):
    model, found = toy_model(), {}
    forward = model.forward

    def recording(ids_T, positions_T, attention, *, compute):
        made = model.new_choices(len(ids_T))
        hidden_TD = forward(ids_T, positions_T, attention, choices=made, compute=compute)
        found.update(zip(positions_T.tolist(), made["expert"].tolist(), strict=True))
        return hidden_TD

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", recording)
        (output,) = tiny_engine(model).generate([request(prompt(16))])
    ids = [*prompt(16), *output.output_ids][:-1]
    routes_TL = torch.tensor([found[position] for position in range(len(ids))])
    made = model.new_choices(len(ids))
    logits = PackedRows([ids]).logits(model, choices=made)
    EXACT.check(made["expert"], routes_TL)
    replayed = Choices({"expert": routes_TL}, are_made=True)
    EXACT.check(PackedRows([ids]).logits(model, choices=replayed), logits)
    with planted_fault("one row goes to another expert"):
        routes_TL[7, 0] = (routes_TL[7, 0] + 1) % 3
        EXACT.check(PackedRows([ids]).logits(model, choices=replayed), logits)


@pytest.mark.parametrize("packing", PACKINGS)
def test_it_trains_without_a_gap_and_the_engine_has_the_new_weights(toy_family, packing):
    model = toy_model()
    engine, trainer = tiny_engine(model), trainer_of(model, **PACKINGS[packing])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for version in (1, 2):
        samples = samples_of(engine.generate(requests(1.0)), 1.0)
        assert train_on(trainer, rewarded(samples)).gap.max == 0.0
        engine.set_weight_version(version)
    moved = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
    assert moved == list(before)


def test_an_exported_model_is_the_one_that_loads(toy_family, tmp_path):
    model = toy_model()
    folder = export_hf(model, tmp_path / "export")
    assert json.loads((folder / "config.json").read_text())["num_local_experts"] == 3
    again = load_model(folder)
    assert again.model.config == model.config
    EXACT.check(dict(hf_tensors(again.model)), dict(hf_tensors(model)))
    names = [r.hf_name for r in tensor_rows(model.config) if r.parameter == "layers.1.gate_up.weight"]  # fmt: skip
    assert names == [f"model.layers.1.moe.{e}.{n}.weight" for e in range(3) for n in ("w1", "w3")]


def test_a_recipe_names_it_and_the_run_has_no_gap(toy_family, tmp_path):
    flags = {
        "run.steps": "3",
        "train.warmup_steps": "1",
        "run.dir": str(tmp_path / "run"),
        "model.init.family": "toy",
        "model.init.num_layers": "2",
        "rollout.prompts_per_step": "4",
        "evaluate.every": "3",
    }
    options = [part for name, value in flags.items() for part in (f"--{name}", value)]
    assert main(["train", str(TINY), *options, "--quiet"]) == 0
    lines = [line for line in read_jsonl(tmp_path / "run/metrics.jsonl") if line["step"] > 0]
    assert [line["gap/total/max"] for line in lines] == [0.0, 0.0, 0.0]
    assert lines[-1]["train/grad_norm"] > 0
    assert load_model(tmp_path / "run/export").model.config.family == "toy"


def test_a_family_that_is_not_registered_is_refused_with_those_that_are():
    with pytest.raises(ModelError, match=r"'toy'.*'llama', 'qwen2', 'qwen3'"):
        CausalLM(tiny_config("toy"))
