"""The Protocol of what continues prompts: an engine in this process, a client of a server, or a fake in a test."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from zerogap.types import Capability, CompletionUpdate, GenerateRequest


class Generator(Protocol):
    """Continues prompts that are given as ids. ``zerogap.engine.AsyncEngine`` is one."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the generator can do. A recipe that needs more is refused at start."""
        ...

    def submit(
        self, request: GenerateRequest, *, with_progress: bool = False
    ) -> AsyncGenerator[CompletionUpdate, None]:
        """Continue one request, together with all others submitted before it ends.

        The same request (ids, parameters, seed) at the same weights gives the same tokens, whatever else is
        generated. Closing the iterator or cancelling the caller aborts the request.

        Args:
            request: what to continue, ``sampling_params.n`` times.
            with_progress: also yield updates while completions grow, as often as the generator chooses.

        Yields:
            An update with an ``output`` for each completion, when it ends, in any order. An aborted completion is an
            output like any other.

        Raises:
            Exception: the generator cannot go on. It never becomes a sample: the step stops.
        """
        ...

    async def abort(self, rid: str) -> None:
        """End a request; its caller gets the tokens drawn so far. Unknown rids are ignored."""
        ...
