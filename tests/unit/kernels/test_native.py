import ctypes
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.attention_cases import packed_tree, random_qkv
from helpers.every_kernel import every_kernel
from helpers.kernel_paths import running_library, values_and_gradients
from helpers.planted_fault import assert_notices, nudged, planted_fault
from helpers.tolerance import EXACT, VECTOR_EXP

from zerogap.kernels import build, packed_attention, round_bf16
from zerogap.kernels.native import _SIGNATURES, native

pytestmark = pytest.mark.skipif(native.library is None, reason="no native kernels here")


def vector_exp(x):
    """The exp of vec.h, read from a logits gradient with T = 1, lse = 0 and grad = -1."""
    logits = x.clone()[None]
    native.logits_gradient_(logits, torch.ones(1), torch.zeros(1), torch.tensor([-1.0]))
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
    """Outputs and gradients of every native kernel, with partial vectors."""
    packed = packed_tree([(None, 0, 21), (0, 19, 5), (0, 19, 33)])
    qkv = random_qkv(packed.num_rows, 7, 1, 80)
    return [
        round_bf16(torch.tensor([1.00390625, torch.nan, torch.inf, -torch.inf, 3e38])),
        values_and_gradients(lambda *x: packed_attention(*x, packed.layout, scale=0.1), qkv),
        [case.everything() for case in every_kernel(9).values()],
    ]


WARNINGS = ("-Wall", "-Wextra", "-Werror")


def compiled(folder, name, *machine):
    """The sources compiled for another machine; -O1, since optimisation changes no bit; warnings are errors."""
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
        written[name] = "".join(_letter(x) for x in parameters.split(",") if x.strip())
    assert {name: written[name] for name in _SIGNATURES} == _SIGNATURES
    with planted_fault("one letter less"):
        assert _SIGNATURES["zg_sample"][:-1] == written["zg_sample"]


def _letter(parameter):
    if "*" in parameter:
        return "p"
    return "f" if "float" in parameter else "i"
