import torch
from helpers.kernel_paths import running_on

from zerogap.kernels import ensure_batch_invariance, kernel_report, probe_batch_invariance
from zerogap.kernels import probe as probe_module
from zerogap.kernels.constants import FIXED_TILE
from zerogap.kernels.linear import linear
from zerogap.kernels.native import NativeKernels, native

SHAPES = [(64, 48), (96, 256), (64, 259), (48, 1)]


def rows_that_know_their_batch(x, weight, bias=None):
    return linear(x, weight, bias) + 1e-6 * x.mean()


def rows_that_know_their_place(x, weight, bias=None):
    return linear(x, weight, bias) + 1e-6 * torch.arange(len(x))[:, None]


def test_gemm_rows_keep_their_bits_on_this_machine():
    probe = probe_batch_invariance(SHAPES)
    assert probe.is_exact
    assert probe.failures == ()
    assert probe.num_threads == torch.get_num_threads()


def test_a_row_that_knows_its_batch_or_its_place_is_reported_with_its_shape(monkeypatch):
    for planted in (rows_that_know_their_batch, rows_that_know_their_place):
        monkeypatch.setattr(probe_module, "linear", planted)
        probe = probe_batch_invariance([(64, 48)])
        assert not probe.is_exact
        assert {(num_in, num_out) for num_in, num_out, _rows in probe.failures} == {(64, 48)}
        assert len(probe.failures) >= 8


def test_the_probe_leaves_the_random_stream_alone():
    before = torch.get_rng_state()
    probe_batch_invariance([(8, 8)])
    assert torch.equal(torch.get_rng_state(), before)


class NeedsTiles(NativeKernels):
    """A BLAS whose rows depend on their number, except in tiles."""

    def product(self, x_MI, weight_OI, *arguments, **named):
        out = super().product(x_MI, weight_OI, *arguments, **named)
        return out if self.tile else out.add_(1e-6 * len(x_MI))


def test_where_rows_depend_on_their_number_a_fixed_tile_is_chosen_and_reported(monkeypatch):
    monkeypatch.setattr(native, "__class__", NeedsTiles)
    monkeypatch.setattr(native, "tile", None)
    assert not probe_batch_invariance([(64, 48)]).is_exact
    assert ensure_batch_invariance([(64, 48)]).is_exact
    assert native.tile == FIXED_TILE
    assert f"tiles of {FIXED_TILE}" in kernel_report()


def test_where_rows_keep_their_bits_no_tile_is_used():
    assert ensure_batch_invariance(iter(SHAPES)).is_exact
    assert native.tile is None


def test_a_machine_that_cannot_be_exact_says_so(monkeypatch):
    monkeypatch.setattr(probe_module, "linear", rows_that_know_their_batch)
    monkeypatch.setattr(native, "tile", None)
    assert not ensure_batch_invariance([(64, 48)]).is_exact


def test_the_report_names_the_path_and_the_threads():
    threads = f"{torch.get_num_threads()} threads"
    with running_on("torch"):
        assert kernel_report().startswith(f"kernels: torch reference, slow ({threads}, ")
        assert kernel_report().endswith("; a test chose torch")
    with running_on("cpu"):
        assert kernel_report().startswith(f"kernels: native C++ ({threads}, ")


def test_the_report_says_when_attention_has_no_fast_path_for_the_model():
    with running_on("cpu"):
        assert kernel_report(64) == kernel_report()
        assert "attention in torch, slow: 16 does not divide the head dim 20" in kernel_report(20)
    with running_on("torch"):
        assert "head dim" not in kernel_report(20)
