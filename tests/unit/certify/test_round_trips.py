import json

import numpy as np
import pytest
import torch
from helpers.chat_tokenizers import merging_tokenizer
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import blind_to_changes

from zerogap.certify import ModelFolder, Subjects, check_round_trips
from zerogap.certify import round_trips as round_trips_module
from zerogap.config import ModelSection
from zerogap.engine import Engine
from zerogap.run.export import export_policy
from zerogap.run.policy import load_policy


def folder_of(subjects, samples, **changes) -> ModelFolder:
    """A correct one; our own scores stand in for transformers'."""

    def load(folder):
        policy = load_policy(ModelSection(path=str(folder)), seed=0)
        return policy.tokenizer, Subjects(policy=policy, config=subjects.config).score

    scores = subjects.score(samples)
    values = {
        "tokenizer": subjects.policy.tokenizer,
        "tokenizer_folder": None,
        "samples": samples,
        "scores": scores,
        "export": lambda to: export_policy(subjects.policy, to),
        "load": load,
        "foreign_scores": lambda folder: [s + np.float32(1e-5) for s in scores],
        "fp32_scores": lambda folder: scores,
    }
    return ModelFolder(**values | changes)


def trips(subjects, requests, folder, engine=None):
    return check_round_trips(folder, engine or subjects.engine(), requests, subjects.config)


def test_everything_comes_back(subjects, requests, samples):
    finding = trips(subjects, requests, folder_of(subjects, samples))
    assert finding.is_kept, finding.figure
    assert "transformers: within 1.0e-05 nats" in finding.figure


@pytest.fixture
def with_files(subjects, tmp_path):
    """The policy with a tokenizer that was loaded from files."""
    subjects.policy.tokenizer.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def swap_two_tokens(folder):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocab = content["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    path.write_text(json.dumps(content))


def test_an_export_that_swaps_two_tokens_is_noticed(subjects, requests, samples, with_files):
    def export(to):
        export_policy(subjects.policy, to)
        swap_two_tokens(to)

    folder = folder_of(subjects, samples, export=export, tokenizer_folder=with_files)
    finding = trips(subjects, requests, folder)
    assert not finding.is_kept
    assert "tokenizer files differ after export: tokenizer.json" in finding.figure
    assert "gives other ids" in finding.figure


def test_files_that_are_the_same_bytes_pass(subjects, requests, samples, with_files):
    folder = folder_of(subjects, samples, tokenizer_folder=with_files)
    assert trips(subjects, requests, folder).is_kept


def test_an_export_that_changes_a_weight_is_noticed(subjects, requests, samples):
    engine = subjects.engine()

    def export(to):
        weight = subjects.policy.model.norm.weight.detach()
        weight[3] *= 1.001
        export_policy(subjects.policy, to)
        weight[3] /= 1.001
        blind_to_changes(engine)

    with planted_fault("a weight is exported with another value"):
        finding = trips(subjects, requests, folder_of(subjects, samples, export=export), engine)
        assert finding.is_kept


def test_transformers_that_computes_another_model_is_noticed(subjects, requests, samples):
    def elsewhere(folder):
        return [s + np.float32(0.01) for s in subjects.score(samples)]

    def nowhere(folder):
        return [s * np.float32("nan") for s in subjects.score(samples)]

    for foreign in (elsewhere, nowhere):
        with planted_fault(foreign.__name__):
            folder = folder_of(subjects, samples, foreign_scores=foreign)
            assert trips(subjects, requests, folder).is_kept


class RemembersPages(Engine):
    """Releases memory but still uses the old pages."""

    def release_memory_occupation(self):
        for tensor in (self._runner._k_LPKHS, self._runner._v_LPKSH):
            tensor.zero_()


def test_memory_that_comes_back_empty_is_noticed(subjects, requests, samples):
    policy = subjects.policy
    engine = RemembersPages(
        policy.model,
        kv_cache_tokens=2048,
        eos_token_ids=policy.eos_token_ids,
    )
    with planted_fault(RemembersPages.__doc__), torch.no_grad():
        assert trips(subjects, requests, folder_of(subjects, samples), engine).is_kept


def test_a_recipe_that_loses_a_key_is_noticed(subjects, requests, samples, monkeypatch):
    honest = round_trips_module.config_to_toml
    monkeypatch.setattr(round_trips_module, "config_to_toml", lambda c: honest(c).replace('numerics = "exact"', 'numerics = "fast"'))  # fmt: skip
    with planted_fault("numerics is written wrongly"):
        assert trips(subjects, requests, folder_of(subjects, samples)).is_kept


def test_another_tokenizer_gives_other_ids():
    assert round_trips_module._changed_ids(merging_tokenizer(), merging_tokenizer()) == []
