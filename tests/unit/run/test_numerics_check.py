"""A machine that cannot be exact is refused, not believed."""

import io
from types import SimpleNamespace

import pytest
from helpers.recipes import run_config
from rich.console import Console

from zerogap.errors import ConfigError
from zerogap.kernels import RowProbe
from zerogap.run.train import TrainingRun


class PolicyWithProbe:
    def __init__(self, failures):
        self._failures = failures
        self.model = SimpleNamespace(config=SimpleNamespace(head_dim=64))

    def probe(self):
        return RowProbe(2, 5, self._failures)


def check(numerics, failures):
    out = io.StringIO()
    run = TrainingRun(run_config(numerics=numerics), Console(file=out, width=300), is_quiet=False)
    run._check_numerics(PolicyWithProbe(failures))
    return out.getvalue()


def test_exact_is_refused_where_rows_differ_and_the_message_says_what_to_do():
    with pytest.raises(ConfigError, match=r'"exact".*64x48 at 24 rows.*"fast".*ZEROGAP_THREADS'):
        check("exact", ((64, 48, 24),))


def test_exact_goes_on_where_they_do_not():
    assert "exact, probed" in check("exact", ())


def test_fast_says_that_the_gap_may_be_open():
    assert "may be open" in check("fast", ((64, 48, 24),))
