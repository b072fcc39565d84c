import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.tolerance import EXACT

from zerogap.errors import ConfigError, KernelError
from zerogap.kernels import build, kernel_report, reference, rms_norm
from zerogap.kernels import probe as probe_module
from zerogap.kernels.choice import BACKENDS
from zerogap.kernels.native import NativeKernels, native

pytestmark = pytest.mark.skipif(native.library is None, reason="no compiler on this machine")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    folder = tmp_path / "cache"
    monkeypatch.setenv("ZEROGAP_CACHE", str(folder))
    monkeypatch.delenv("ZEROGAP_KERNELS", raising=False)
    return folder / "kernels"


@pytest.fixture
def fresh(monkeypatch):
    """The kernels as in a new process; the look-up and the report use them."""
    kernels = NativeKernels()
    monkeypatch.setitem(BACKENDS, "cpu", kernels)
    monkeypatch.setattr(probe_module, "native", kernels)
    return kernels


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def slow_compiler(monkeypatch, tmp_path):
    """A ``g++`` that writes the library in two halves, and logs a line per run."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "g++"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo slow 1.0; exit 0; fi\n'
        f"echo run >> {tmp_path}/log\n"
        'while [ "$1" != -o ]; do shift; done\n'
        f'head -c 20000 {native.library._name} > "$2"; sleep 0.3; tail -c +20001 {native.library._name} >> "$2"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{_path_of('head')}")
    return tmp_path / "log"


def _path_of(tool):
    return str(Path(shutil.which(tool)).parent)


def _sources(monkeypatch, tmp_path, text):
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "kernel.cpp").write_text(text)
    monkeypatch.setattr(build, "_SOURCES", folder)


def test_without_a_compiler_the_reference_runs_and_the_report_says_why(cache, fresh, no_compiler):
    x, weight = torch.randn(3, 20), torch.rand(20)
    EXACT.check(rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)[0])
    assert fresh.library is None
    report = kernel_report()
    assert "torch reference, slow" in report
    assert "no C++ compiler (g++, c++ or clang++) is on the PATH; install one" in report


def test_without_a_compiler_a_demand_for_native_kernels_is_an_error(
    cache, fresh, no_compiler, monkeypatch
):
    monkeypatch.setenv("ZEROGAP_KERNELS", "native")
    for _ in range(2):  # the second call must not find a half-made state
        with pytest.raises(KernelError, match="no C\\+\\+ compiler"):
            rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-5)


def test_the_reference_can_be_chosen_where_a_compiler_is(cache, fresh, monkeypatch):
    monkeypatch.setenv("ZEROGAP_KERNELS", "torch")
    assert fresh.library is None
    assert kernel_report().endswith("ZEROGAP_KERNELS=torch")
    assert not cache.exists()


def test_a_choice_that_does_not_exist_is_refused(fresh, monkeypatch):
    monkeypatch.setenv("ZEROGAP_KERNELS", "fast")
    with pytest.raises(ConfigError, match="ZEROGAP_KERNELS = 'fast'"):
        rms_norm(torch.zeros(1, 4), torch.ones(4), 1e-5)


def test_what_the_compiler_says_is_shown_and_nothing_stays_behind(
    cache, fresh, monkeypatch, tmp_path
):
    _sources(monkeypatch, tmp_path, "int broken( {")
    with pytest.raises(KernelError, match=r"do not compile with .*kernel\.cpp:1.*error"):
        build.load_library()
    assert list(cache.iterdir()) == []
    assert fresh.library is None
    assert "kernel.cpp:1" in kernel_report()


def test_a_library_is_built_once_and_again_when_a_source_changes(cache, monkeypatch, tmp_path):
    _sources(monkeypatch, tmp_path, 'extern "C" int answer() { return 1; }')
    assert build.load_library().answer() == 1
    (built,) = cache.iterdir()
    before = built.stat().st_mtime_ns
    assert build.load_library().answer() == 1
    assert built.stat().st_mtime_ns == before
    (build._SOURCES / "kernel.cpp").write_text('extern "C" int answer() { return 2; }')
    assert build.load_library().answer() == 2
    assert len(list(cache.iterdir())) == 2


def test_another_compiler_or_processor_has_a_library_of_its_own(cache, monkeypatch, slow_compiler):
    slow = build._library_path(build.find_compiler())
    monkeypatch.setattr(build, "_processor", lambda: "another")
    assert build._library_path(build.find_compiler()) != slow


def test_of_builders_at_the_same_time_one_compiles_and_all_load_a_whole_library(
    cache, slow_compiler
):
    """Threads stand for processes: they share only the folder, and the compiler is a process."""
    with ThreadPoolExecutor(4) as pool:
        libraries = [f.result() for f in [pool.submit(build.load_library) for _ in range(4)]]
    assert slow_compiler.read_text().count("run") == 1
    assert len({library._name for library in libraries}) == 1
    assert all(hasattr(library, "zg_sample") for library in libraries)
    assert len(list(cache.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_named_and_the_reference_runs(
    fresh, monkeypatch, tmp_path, slow_compiler
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZEROGAP_CACHE", str(tmp_path / "file"))
    with pytest.raises(KernelError, match=r"cannot be stored or loaded: .*set ZEROGAP_CACHE"):
        build.load_library()
    assert fresh.library is None
    assert "set ZEROGAP_CACHE" in kernel_report()


def test_a_library_that_is_not_one_is_named(cache, slow_compiler):
    path = build._library_path(build.find_compiler())
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half a file")
    with pytest.raises(KernelError, match=f"{path.name} cannot be stored or loaded"):
        build.load_library()
