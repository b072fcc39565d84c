import pytest
from helpers.tiny_models import tiny_model

from zerogap.data import byte_tokenizer
from zerogap.errors import ConfigError
from zerogap.kernels import FastGemm, GemmTimes, InvarianceProbe
from zerogap.run.numerics import settle_numerics
from zerogap.run.policy import Policy

ROWS = {"engine_rows": 8, "trainer_rows": 64}


@pytest.fixture
def policy():
    return Policy(
        model=tiny_model(precision="bf16"), tokenizer=byte_tokenizer(), eos_token_ids=(2,)
    )


def test_exact_is_probed_and_the_report_says_on_what(policy):
    settled = settle_numerics(policy, "exact", **ROWS)
    assert (settled.engine, settled.trainer) == ("exact", "exact")
    assert settled.report.startswith("kernels: ")
    assert ", bf16; numerics: exact, probed on this model's 5 GEMM shapes" in settled.report


def test_exact_is_refused_where_rows_differ(policy, monkeypatch):
    monkeypatch.setattr(Policy, "probe", lambda _: InvarianceProbe(2, 5, ((64, 48, 24),)))
    with pytest.raises(ConfigError, match=r'"exact".*64x48 at 24 rows.*"fast".*ZEROGAP_THREADS'):
        settle_numerics(policy, "exact", **ROWS)


def test_fast_takes_the_faster_products_for_each_side(policy, monkeypatch):
    def times(self, *, engine_rows, trainer_rows):
        sides = [(engine_rows, 2.0, 1.0), (trainer_rows, 1.0, 2.0)]
        engine, trainer = (
            GemmTimes(num_rows=rows, num_threads=2, exact_s=exact_s, blas_s=blas_s)
            for rows, exact_s, blas_s in sides
        )
        return FastGemm(engine=engine, trainer=trainer)

    monkeypatch.setattr(Policy, "fastest_gemm", times)
    settled = settle_numerics(policy, "fast", **ROWS)
    assert (settled.engine, settled.trainer) == ("blas", "exact")
    assert "fast, GEMMs timed on 2 threads: engine, 8 rows: exact 2000.0 ms" in settled.report
    assert settled.report.endswith("the gap may be above 0 and is measured")


def test_fast_times_the_models_own_weights(policy):
    report = settle_numerics(policy, "fast", **ROWS).report
    assert "engine, 8 rows: exact" in report
    assert "trainer, 64 rows: exact" in report
