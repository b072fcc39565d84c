"""[engine]: who samples, and with how much memory."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.config.section import Section


class EngineConfig(Section):
    """Apart from backend and dtype, limits: none of them changes a token or a log-prob."""

    backend: Literal["zerogap", "transformers"] = "zerogap"
    """zerogap: the engine that shares the trainer's model; transformers: its generate, with a copy of the weights."""
    dtype: Literal["fp32", "bf16"] | None = None
    """Precision of sampling; none: model.dtype. Another one than the trainer's needs a copy of the weights."""

    kv_cache_gib: float = Field(1.0, gt=0)
    """Memory for keys and values, in GiB."""
    kv_cache_tokens: int | None = Field(None, ge=1)
    """The same limit in tokens, rounded up to whole pages; when given, it decides instead of kv_cache_gib."""
    max_running: int = Field(64, ge=1)
    """Most sequences in one forward pass."""
    max_scheduled_tokens: int = Field(1024, ge=1)
    """Most token rows in one forward pass, prompts' and completions' together; longer prompts are prefilled in chunks."""
    prefix_cache: bool = True
    """Keep the keys and values of finished requests for prompts that begin alike."""

    def problems(self) -> Iterator[str]:
        """A budget that cannot serve every running sequence."""
        if self.max_scheduled_tokens < self.max_running:
            yield f"max_scheduled_tokens = {self.max_scheduled_tokens}: each of max_running = {self.max_running} sequences decodes one row a step; set max_scheduled_tokens to at least that, or max_running lower"
