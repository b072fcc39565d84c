"""Ctrl-C that loses nothing: the first one asks, the second one insists."""

import signal
from collections.abc import Callable
from types import FrameType


class Interrupt:
    """While entered, the first SIGINT or SIGTERM sets ``is_requested``; a second one raises KeyboardInterrupt.

    Only in the main thread, where Python delivers signals; elsewhere it never triggers.
    """

    def __init__(self, on_request: Callable[[], None]) -> None:
        """``on_request`` tells the user that the step will be finished first."""
        self.is_requested = False
        self._on_request = on_request
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:
                # Not the main thread: signals go to whoever owns it.
                return self
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        self._on_request()
