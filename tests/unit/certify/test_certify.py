import json

import pytest
from helpers.recipes import TINY_POLICY, run_config

from zerogap.certify import certify
from zerogap.certify.certify import describe_probe
from zerogap.certify.probe_batch import probe_requests
from zerogap.errors import ConfigError, NumericsError
from zerogap.kernels import InvarianceProbe
from zerogap.train import NativeTrainer
from zerogap.train import forward as forward_module
from zerogap.train.forward import PackedAttention


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_tiny_policy_is_certified(dtype):
    config = run_config(model=TINY_POLICY | {"dtype": dtype})
    lines, verdicts = [], []
    certificate = certify(config, quiet=True, on_report=lines.append, on_verdict=verdicts.append)  # fmt: skip
    assert certificate.is_kept, [v.line() for v in verdicts]
    assert [v.promise for v in verdicts] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert lines == [certificate.report]
    record = json.loads(json.dumps(certificate.to_json()))
    assert [v["is_kept"] for v in record["verdicts"]] == [True] * 9


def test_a_promise_that_does_not_hold_names_what_to_do(monkeypatch):
    class CompanyMatters(PackedAttention):
        def __call__(self, layer, q_TNH, k_TKH, v_TKH):
            return super().__call__(layer, q_TNH * (1 + 1e-3 / len(q_TNH)), k_TKH, v_TKH)

    monkeypatch.setattr(forward_module, "PackedAttention", CompanyMatters)
    certificate = certify(run_config(model=TINY_POLICY, numerics="fast"), quiet=True)
    assert not certificate.is_kept
    broken = {v.promise: v for v in certificate.verdicts if not v.is_kept}
    assert 2 in broken
    assert 5 not in broken
    assert "FAIL" in broken[2].line()
    assert 'numerics = "exact"' in broken[2].finding.cure


def test_a_check_that_cannot_be_completed_is_no_pass(monkeypatch):
    def refuse(self, samples):
        raise NumericsError("a log-prob is not finite")

    monkeypatch.setattr(NativeTrainer, "score", refuse)
    verdicts = certify(run_config(model=TINY_POLICY), quiet=True).verdicts
    assert [v.promise for v in verdicts if not v.is_kept] == [2, 4]
    assert "NumericsError: a log-prob is not finite" in verdicts[1].line()


@pytest.mark.parametrize("engine", [{"backend": "transformers"}, {"dtype": "bf16"}])
def test_sides_that_are_not_alike_are_refused_before_anything_is_loaded(engine):
    config = run_config(numerics="fast", engine=engine, model={"path": "does/not/exist"})
    with pytest.raises(ConfigError, match="ledger"):
        certify(config, quiet=True)


def test_a_probe_that_failed_says_where():
    report = describe_probe(InvarianceProbe(2, 6, ((32, 64, 8),)), 16)
    assert "NOT batch-invariant (1 failures on 6 shapes: 32x64 at 8 rows)" in report


def test_a_context_too_short_for_the_probe_is_refused(subjects):
    params = subjects.config.rollout.sampling.params()
    with pytest.raises(ConfigError, match="52 positions"):
        probe_requests(subjects.policy.tokenizer, params, max_positions=52)
