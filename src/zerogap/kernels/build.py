"""Compiles the C++ kernels once for this machine, at first use, and loads them through a plain C interface.

No wheel is tied to a torch version or a processor: the package ships the sources, and the compiled library goes to the
user's cache under a name made of sources, compiler, flags and processor. Without a compiler the torch reference runs,
and ``kernel_report()`` says so. The kernels have their own threads (``cpp/pool.h``), as many as the OpenMP runtime that
torch has loaded allows: ``torch.set_num_threads`` holds for both.
"""

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from zerogap.config.env import read_environment
from zerogap.errors import KernelError

_SOURCES = Path(__file__).parent / "cpp"
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-fno-math-errno",
    # A multiply-add is fused only where the source says so: the bits must not depend on the compiler.
    "-ffp-contract=off",
)


def find_compiler() -> str | None:
    """Path of a C++ compiler, or None."""
    return next(
        (found for name in ("g++", "c++", "clang++") if (found := shutil.which(name))), None
    )


def load_library() -> ctypes.CDLL:
    """The compiled kernels, built now if this machine has none yet.

    Raises:
        KernelError: there is no compiler, or it failed (the message ends with its output), or the library cannot be
            stored or loaded.
    """
    compiler = find_compiler()
    if compiler is None:
        msg = (
            "no C++ compiler (g++, c++ or clang++) is on the PATH; install one for the fast kernels"
        )
        raise KernelError(msg)
    target = _library_path(compiler)
    try:
        if not target.exists():
            _compile_once(compiler, target)
        return ctypes.CDLL(str(target))
    except OSError as error:
        msg = f"the compiled kernels {target} cannot be stored or loaded: {error}; set ZEROGAP_CACHE to a writable folder whose file system allows executable files"
        raise KernelError(msg) from error


def _library_path(compiler: str) -> Path:
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout
    # -march=native compiles for this processor: a cache on a shared disk must not serve a different one.
    digest = hashlib.sha256(f"{version}{_FLAGS}{_processor()}".encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return read_environment().cache / "kernels" / f"zerogap_{digest.hexdigest()[:16]}.so"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    lines = cpuinfo.read_text().splitlines()
    return "".join(
        next((x for x in lines if x.startswith(key)), "")
        for key in ("model name", "flags", "Features")
    )


def _compile_once(compiler: str, target: Path) -> None:
    """Compile, unless another process has done so while this one waited for the lock."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.parent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(compiler, target)


def _compile(compiler: str, target: Path) -> None:
    # Written beside the target and renamed: a process killed here leaves no partial library under the target name.
    handle, scratch = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    command = [compiler, *_FLAGS, *(str(p) for p in sorted(_SOURCES.glob("*.cpp"))), "-o", scratch]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        Path(scratch).unlink()
        msg = f"the C++ kernels do not compile with {compiler}: {done.stderr.strip()[-2000:]}"
        raise KernelError(msg)
    Path(scratch).replace(target)
