"""Who continues prompts: an engine in this process, a client of a server, or a fake in a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from zerogap.types import GenerateOutput, GenerateRequest

Progress = Callable[[Any], None]
"""Called by a generator now and then with a record of its own kind, for a progress display."""


class Generator(Protocol):
    """Continues prompts that are given as ids. ``zerogap.engine.Engine`` is one."""

    def generate(
        self, requests: Sequence[GenerateRequest], *, on_progress: Progress | None = None
    ) -> list[GenerateOutput]:
        """One output a completion, each with the ``rid`` of its request and its sibling's ``index``.

        An aborted completion is an output like any other. The same request (ids, parameters, seed) at
        the same weights gives the same tokens, whatever is generated beside it.

        Raises:
            Exception: nothing can be generated. It is never turned into samples: the step stops.
        """
        ...
