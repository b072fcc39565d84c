"""[engine]: the inference engine and its limits."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.section import Section


class EngineConfig(Section):
    """Limits of the engine. Only backend and dtype can change a token or a log-prob."""

    backend: Literal["zerogap", "transformers"] = "zerogap"
    """zerogap: the built-in engine, which shares the trainer's weights; transformers: ``generate`` on a copy of the weights."""
    dtype: Literal["fp32", "bf16"] | None = None
    """Precision of sampling; none: model.dtype. A different precision needs a copy of the weights."""

    kv_cache_gib: float = Field(1.0, gt=0)
    """Memory of the KV cache, in GiB."""
    kv_cache_tokens: int | None = Field(None, ge=1)
    """Size of the KV cache in tokens, rounded up to whole pages; overrides kv_cache_gib."""
    max_running: int = Field(64, ge=1)
    """At most this many sequences in one forward pass."""
    max_scheduled_tokens: int = Field(1024, ge=1)
    """At most this many token rows in one forward pass, prefill and decode together; longer prompts are prefilled in chunks."""
    prefix_cache: bool = True
    """Reuse keys and values of earlier requests for prompts with the same prefix."""

    def problems(self) -> Iterator[str]:
        """A token budget below the number of running sequences."""
        if self.max_scheduled_tokens < self.max_running:
            yield f"max_scheduled_tokens = {self.max_scheduled_tokens}: max_running = {self.max_running} sequences decode one row each per step; set max_scheduled_tokens to at least max_running"
