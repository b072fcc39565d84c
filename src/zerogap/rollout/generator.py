"""Who continues prompts: an engine in this process, a client of a server, or a fake in a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from zerogap.types import Capability, CompletionUpdate, GenerateRequest


class Generator(Protocol):
    """Continues prompts that are given as ids. ``zerogap.engine.AsyncEngine`` is one."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do. A recipe that needs more is refused at start."""
        ...

    def submit(
        self, request: GenerateRequest, *, with_progress: bool = False
    ) -> AsyncGenerator[CompletionUpdate, None]:
        """Continue one request, beside all others that are submitted before it ends.

        The same request (ids, parameters, seed) at the same weights gives the same tokens, whatever is generated
        beside it. Closing the iterator, or a cancelled caller, aborts the request.

        Args:
            request: what to continue, ``sampling_params.n`` times.
            with_progress: whether completions are also shown while they grow, as often as the generator sees fit.

        Yields:
            An update with an ``output`` for each completion, when it ends, in any order. An aborted completion is an
            output like any other.

        Raises:
            Exception: nothing can be generated. It is never turned into samples: the step stops.
        """
        ...

    async def abort(self, rid: str) -> None:
        """End a request; its caller gets what was drawn so far. Unknown rids are ignored."""
        ...
