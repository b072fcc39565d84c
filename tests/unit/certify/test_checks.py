"""Each check passes what is true and must fail on a planted fault."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.recipes import TINY_POLICY, run_config
from helpers.tiny_engine import blind_to_changes
from helpers.train_batches import gradient_on, train_on

from zerogap.certify import (
    Reported,
    Subjects,
    check_fingerprints,
    check_gradient,
    check_identity,
    check_rows,
    check_versions,
)
from zerogap.certify.checks import Checks
from zerogap.certify.variants import compute_variants, layouts
from zerogap.engine import Engine
from zerogap.obs import Phase
from zerogap.run.policy import load_policy
from zerogap.train import NativeTrainer
from zerogap.train import forward as forward_module
from zerogap.train.forward import PackedAttention
from zerogap.weights import Publisher, SharedWeights, WeightVersions, digest_weights, named_weights


def keeps(finding, *words: str) -> None:
    """The promise is kept, or an AssertionError with what was found."""
    assert finding.is_kept, f"{finding.figure}; {finding.cure}"
    assert all(word in finding.figure for word in words)


def digest_of(weights) -> str:
    return digest_weights(weights).hex


# ---------------------------------------------------------------- 1


def identity(subjects, samples, **changes):
    steps = {
        whose: lambda old=whose: train_on(subjects.trainer(updates_per_step=2, old_log_probs=old, **changes), samples, exact_version=0)
        for whose in ("trainer", "rollout")
    }  # fmt: skip
    return check_identity(steps, lambda: digest_of(named_weights(subjects.policy.model)))


def test_a_step_without_learning_changes_nothing(subjects, samples):
    keeps(identity(subjects, samples), "240 ratios", "weights unchanged")


def test_weights_that_move_are_noticed(subjects, samples):
    finding = identity(subjects, samples, learning_rate=1e-6)
    assert not finding.is_kept
    assert "the weights have changed" in finding.figure


def test_a_ratio_next_to_1_is_noticed(subjects, samples):
    nudged = [replace(s, rollout_log_probs=s.rollout_log_probs * np.float32(1 + 1e-6)) for s in samples]  # fmt: skip
    with planted_fault("the engine's log-probs are off by a millionth"):
        keeps(identity(subjects, nudged))


# ---------------------------------------------------------------- 2


class CompanyMatters(PackedAttention):
    """Its result depends on the number of rows computed together."""

    def __call__(self, layer, q_TNH, k_TKH, v_TKH):
        return super().__call__(layer, q_TNH * (1 + 1e-3 / len(q_TNH)), k_TKH, v_TKH)


def rows(subjects, requests, samples, outputs):
    variants = compute_variants(subjects, requests, samples)
    return check_rows(Reported.of_outputs(outputs), variants, cure="cure")


def test_nine_ways_give_one_result(subjects, requests, samples, outputs):
    keeps(rows(subjects, requests, samples, outputs), "120 tokens, 9 other ways")


def test_a_trainer_whose_rows_depend_on_their_company_is_noticed(
    subjects, requests, samples, outputs, monkeypatch
):
    monkeypatch.setattr(forward_module, "PackedAttention", CompanyMatters)
    finding = rows(subjects, requests, samples, outputs)
    assert not finding.is_kept
    assert finding.figure.count("scored by the trainer") == 2
    assert "scored by the engine" not in finding.figure


def test_a_trainer_that_multiplies_with_a_blas_is_noticed():
    """Of inner widths above 256: below, one block holds all terms and a BLAS adds them in our order."""
    wide = TINY_POLICY["init"] | {"hidden_size": 320, "intermediate_size": 640}
    config = run_config(model=TINY_POLICY | {"init": wide})
    policy = load_policy(config.model, seed=0)
    with_blas = Checks(Subjects(policy=policy, config=config, trainer_gemm="blas"))
    found = {promise: check(Phase()) for promise, _, check in with_blas.all() if promise in (1, 2)}
    assert not found[1].is_kept
    assert "ratios to the engine's log-probs lie in" in found[1].figure
    assert not found[2].is_kept
    assert found[2].figure.startswith("scored by the trainer: ")


def test_one_bit_of_one_log_prob_is_noticed(outputs):
    reference = Reported.of_outputs(outputs)
    columns = [c.copy() for c in reference.log_probs]
    columns[-1][-1] = np.nextafter(columns[-1][-1], np.float32(0))
    variants = {"mine": lambda: Reported(reference.ids, tuple(columns))}
    with planted_fault("the last log-prob is one unit in the last place off"):
        keeps(check_rows(reference, variants, cure="cure"))


def test_not_a_number_is_not_taken_for_equal(outputs):
    reference = Reported.of_outputs(outputs)
    broken = Reported(reference.ids, tuple(c * np.float32("nan") for c in reference.log_probs))
    with planted_fault("log-probs are NaN on both sides"):
        keeps(check_rows(broken, {"mine": lambda: broken}, cure="cure"))


# ---------------------------------------------------------------- 3


def test_seven_layouts_give_one_gradient(subjects, samples):
    keeps(check_gradient(layouts(subjects, samples)), "7 layouts")


def test_corrections_are_normalised_over_the_whole_batch(subjects, samples):
    config = run_config(
        model=TINY_POLICY,
        corrections={"weight": {"normalize": True}, "mask": {"low": 0.5, "high": 3.0}},
    )
    corrected = replace(subjects, config=config)
    variants = layouts(corrected, samples)
    keeps(check_gradient(variants), "7 layouts")
    with planted_fault("corrections are left out"):
        keeps(
            check_gradient(
                {
                    "with": variants["all at once"],
                    "without": layouts(subjects, samples)["all at once"],
                }
            )
        )


def test_denominators_of_micro_batches_are_noticed(subjects, samples):
    def gradient(some):
        return {n: t.clone() for n, t in gradient_on(subjects.trainer(), some).tensors.items()}

    def by_group():
        parts = [gradient([s for s in samples if s.group_id == g]) for g in {s.group_id for s in samples}]  # fmt: skip
        return {name: sum(part[name] for part in parts) for name in parts[0]}

    with planted_fault("each group divides by its own tokens"):
        keeps(check_gradient({"whole": lambda: gradient(samples), "by group": by_group}))


def test_a_gradient_that_is_not_finite_is_noticed():
    variants = {"a": lambda: {"w": torch.ones(3)}, "b": lambda: {"w": torch.tensor([1.0, 1.0, torch.nan])}}  # fmt: skip
    with planted_fault("NaN in one layout"):
        keeps(check_gradient(variants))
    with planted_fault("no gradient at all"):
        keeps(check_gradient({"a": lambda: {"w": torch.zeros(3)}, "b": lambda: {"w": torch.zeros(3)}}))  # fmt: skip


# ---------------------------------------------------------------- 4


class IgnoresVersions(Engine):
    """Reads the new weights but reports the old version."""

    def _use_version(self, version):
        if version == 2:
            super()._use_version(version)
        blind_to_changes(self)


class KeepsPages(Engine):
    """Reports the new version but reads keys of the old weights."""

    def _use_version(self, version):
        self._loop.weight_version = version
        blind_to_changes(self)


class TurnsVersionsAround(Engine):
    """Reverses the version numbers of a completion's tokens."""

    def generate(self, requests, **named):
        return [replace(o, weight_version=o.weight_version[::-1]) for o in super().generate(requests, **named)]  # fmt: skip


def versions(subjects, requests, kind=Engine, *, publishes=True, weight=None):
    model = subjects.policy.model
    engine = kind(model, kv_cache_tokens=2048, eos_token_ids=subjects.policy.eos_token_ids)
    publisher = Publisher(SharedWeights(model), engine, WeightVersions())
    weights = named_weights(model)
    before = digest_of(weights)
    finding = check_versions(
        engine,
        requests,
        weights["layers.0.input_norm.weight"] if weight is None else weight,
        publish=publisher.publish if publishes else lambda version: engine._use_version(version),
        score=subjects.trainer().score,
    )
    assert digest_of(weights) == before
    return finding


def test_tokens_are_of_the_version_they_carry(subjects, requests):
    keeps(versions(subjects, requests), "published half-way", "used no old keys")


@pytest.mark.parametrize("kind", [IgnoresVersions, KeepsPages])
def test_an_engine_that_forgets_a_version_is_noticed(subjects, requests, kind):
    with planted_fault(kind.__doc__):
        keeps(versions(subjects, requests, kind))


def test_a_completion_that_goes_back_to_older_weights_is_noticed(subjects, requests):
    finding = versions(subjects, requests, TurnsVersionsAround)
    assert not finding.is_kept
    assert "a sequence goes back to an older version" in finding.figure


def test_a_weight_that_no_forward_pass_reads_is_noticed(subjects, requests):
    finding = versions(subjects, requests, weight=torch.ones(3))
    assert not finding.is_kept
    assert finding.figure == (
        "changed weights gave the same log-probs: the engine does not read them"
    )


# ---------------------------------------------------------------- 5


def fingerprints(subjects, digest=digest_of, served=None):
    weights = named_weights(subjects.policy.model)
    before = digest_of(weights)
    finding = check_fingerprints(weights, served or (lambda: digest(weights)), digest)
    assert digest_of(weights) == before
    return finding


def test_both_sides_have_one_digest_that_sees_every_tensor(subjects):
    engine = subjects.engine()
    keeps(fingerprints(subjects, served=lambda: engine.digest().hex), "any of 18 tensors")


def test_a_digest_that_skips_a_tensor_is_noticed(subjects):
    def skipping(weights):
        return digest_of({"none": torch.zeros(1), **{n: t for n, t in weights.items() if n != "norm.weight"}})  # fmt: skip

    finding = fingerprints(subjects, skipping)
    assert not finding.is_kept
    assert "1 of 18 tensors can change without changing the digest (norm.weight)" in finding.figure


def test_a_digest_of_first_halves_is_noticed(subjects):
    def halves(weights):
        return digest_of({n: t.flatten()[: t.numel() // 2] for n, t in weights.items()})

    with planted_fault("only the first half of each tensor is read"):
        keeps(fingerprints(subjects, halves))


@pytest.mark.parametrize("name", ["embed_tokens.weight", "norm.weight", "layers.1.down.weight"])
def test_an_engine_with_one_other_bit_is_noticed(subjects, name):
    weights = named_weights(subjects.policy.model)
    other = {**weights, name: weights[name].clone()}
    other[name].view(-1)[3] *= 1 + 2**-23
    with planted_fault(f"one bit of the engine's {name}"):
        keeps(fingerprints(subjects, served=lambda: digest_of(other)))


def test_the_trainer_leaves_nothing_to_learn_from(subjects):
    """Every trainer that a check gets has learning rate 0, whatever the recipe says."""
    assert isinstance(subjects.trainer(), NativeTrainer)
    assert subjects.trainer()._config.learning_rate == 0
