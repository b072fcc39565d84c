import ctypes
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.attention_cases import packed_tree, random_qkv
from helpers.kernel_paths import BF16, running_library, values_and_gradients
from helpers.planted_fault import assert_notices, nudged, planted_fault
from helpers.sampling_rows import rows_for
from helpers.tolerance import EXACT, VECTOR_EXP

from zerogap.kernels import (
    Head,
    build,
    linear,
    log_probs,
    norm_linear,
    packed_attention,
    qkv_rope,
    rms_norm,
    rope_tables,
    round_bf16,
    sample_tokens,
    swiglu,
)
from zerogap.kernels.native import _SIGNATURES, native

pytestmark = pytest.mark.skipif(native.library is None, reason="no native kernels here")


def vector_exp(x):
    """The exp of vec.h, read from a logits gradient: no target in the chunk, T = 1, lse = 0, grad = -1."""
    logits = x.clone()[None]
    native.logits_gradient_(
        logits, torch.ones(1), torch.zeros(1), torch.tensor([-1]), torch.tensor([-1.0])
    )
    return logits[0]


def test_exp_is_right_to_two_parts_in_ten_million():
    x = torch.cat([torch.linspace(-87.3, 88.3, 300_001), torch.linspace(-0.4, 0.4, 300_001)])
    # Relative errors: compared after division, so that one bound holds from 1e-38 to 1e38.
    ratio = vector_exp(x).double() / x.double().exp()
    VECTOR_EXP.check(ratio, torch.ones_like(ratio))
    assert_notices(
        "3e-7 more", lambda: VECTOR_EXP.check(ratio * (1 + 3e-7), torch.ones_like(ratio))
    )


def test_exp_ends_in_zero_a_large_number_and_nan():
    values = vector_exp(
        torch.tensor([-torch.inf, -1000.0, -88.0, 0.0, 100.0, torch.inf, torch.nan])
    )
    assert values[:4].tolist() == [0, 0, 0, 1]
    assert (values[4:6] > 2e38).all()
    assert values[6].isnan()


def everything():
    """Outputs and gradients of every native kernel, with partial vectors and blocks of every size."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    cos, sin = rope_tables(torch.rand(24, generator=generator), torch.arange(9))
    norms = [1 + 0.1 * normal(48), 1 + 0.1 * normal(48)]
    packed = packed_tree([(None, 0, 21), (0, 19, 5), (0, 19, 33)])
    qkv = random_qkv(packed.num_rows, 7, 1, 80)
    target, temperature = torch.arange(9), torch.linspace(0.3, 1.7, 9)
    hidden, head = normal(9, 12), normal(4100, 12)
    uniform = torch.rand(9, dtype=torch.float64, generator=generator)
    results = [
        values_and_gradients(lambda x, w: rms_norm(x, w, 1e-5), [normal(5, 37), normal(37)]),
        values_and_gradients(swiglu, [normal(5, 74)]),
        values_and_gradients(
            lambda x, *norms: qkv_rope(x, cos, sin, *norms, num_heads=3, num_kv_heads=1, eps=1e-5),
            [normal(9, 240), *norms],
        ),
        values_and_gradients(lambda *x: packed_attention(*x, packed.layout, scale=0.1), qkv),
        values_and_gradients(
            lambda h, w: log_probs(h, Head(w, 4100), target, temperature), [hidden, head]
        ),
    ]
    results += [
        values_and_gradients(
            lambda x, w, v: linear(swiglu(x, compute=BF16), w, residual_TO=v, compute=BF16),
            [normal(9, 74), normal(21, 37), normal(9, 21)],
        ),
        values_and_gradients(
            lambda x, n, w: norm_linear(x, n, w, eps=1e-5, compute=BF16),
            [normal(30, 37), normal(37), normal(21, 37)],
        ),
        values_and_gradients(
            lambda x, *norms: qkv_rope(
                x, cos, sin, *norms, num_heads=3, num_kv_heads=1, eps=1e-5, compute=BF16
            ),
            [normal(9, 240), *norms],
        ),
        ([round_bf16(torch.tensor([1.00390625, torch.nan, torch.inf, -torch.inf, 3e38]))], []),
    ]
    for filters in ({}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"greedy": True}):
        rows = rows_for(uniform, **filters)
        results.append((list(sample_tokens(hidden, Head(head, 4100), rows)), [cos, sin]))
    return [x for values, gradients in results for x in (*values, *gradients)]


WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiled(folder, name, *machine):
    """The sources compiled for another machine; -O1 for speed, since optimisation changes no bit; warnings are errors."""
    flags = [f for f in build._FLAGS if not f.startswith(("-march", "-O"))]
    sources = sorted(map(str, build._SOURCES.glob("*.cpp")))
    target = str(folder / f"{name}.so")
    subprocess.run(
        [build.find_compiler(), *flags, "-O1", *WARNINGS, *machine, *sources, "-o", target],
        check=True,
    )
    return ctypes.CDLL(target)


def _has(*flags):
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return words.issuperset(flags)


@pytest.mark.slow
@pytest.mark.skipif(not _has("avx2", "fma"), reason="needs an x86 processor with AVX2")
def test_every_width_of_vector_gives_the_same_bits(tmp_path, monkeypatch):
    """AVX2 in two halves, and plain loops, against this machine's own build (AVX-512 if it has it).

    Plain loops have no GEMM of their own, so both sides use the BLAS for that comparison.
    """
    components = {"avx2": ["-march=haswell"], "loops": ["-march=haswell", "-mno-avx2"]}
    with ThreadPoolExecutor() as pool:
        builds = [pool.submit(compiled, tmp_path, name, *m) for name, m in components.items()]
        avx2, loops = (b.result() for b in builds)
    expected = everything()
    with running_library(avx2):
        assert native.has_gemm
        EXACT.check(everything(), expected)
    monkeypatch.setattr(type(native), "has_gemm", False)
    expected = everything()
    with running_library(loops):
        EXACT.check(everything(), expected)
    assert_notices("one ulp", lambda: EXACT.check([nudged(expected[0]), *expected[1:]], expected))


def test_every_function_is_declared_as_it_is_written():
    """ctypes checks nothing: a missing or wrong letter would read an argument from the wrong register."""
    sources = "".join(path.read_text() for path in sorted(build._SOURCES.glob("*.cpp")))
    written = {}
    for name, parameters in re.findall(r"(?:void|int64_t) (zg_\w+)\(([^)]*)\) \{", sources):
        if all(
            re.search(r"\w\s*\*?\s*\w+$", x.strip()) for x in parameters.split(",") if x.strip()
        ):
            letters = "".join(_letter(x) for x in parameters.split(",") if x.strip())
            written.setdefault(name, set()).add(letters)
    assert set(_SIGNATURES) <= set(written)
    wrong = {n: (s, written[n]) for n, s in _SIGNATURES.items() if s not in written[n]}
    assert not wrong
    with planted_fault("one letter less"):
        assert _SIGNATURES["zg_sample"][:-1] in written["zg_sample"]


def _letter(parameter):
    if "*" in parameter:
        return "p"
    return "f" if "float" in parameter else "i"


def test_the_number_of_threads_changes_no_forward_bit():
    expected = everything_forward()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(before + 2)
        EXACT.check(everything_forward(), expected)
    finally:
        torch.set_num_threads(before)


def everything_forward():
    packed = packed_tree([(None, 0, 40), (0, 30, 9)])
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(30, 64, generator=generator)
    return [
        rms_norm(x, torch.ones(64), 1e-5),
        swiglu(x),
        packed_attention(*random_qkv(packed.num_rows, 6, 2, 32), packed.layout, scale=0.2),
    ]
