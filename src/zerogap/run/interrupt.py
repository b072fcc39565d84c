"""Ctrl-C and SIGTERM without loss: the first one stops after the step, the second one stops at once."""

import signal
from collections.abc import Callable
from types import FrameType


class Interrupt:
    """While entered, the first SIGINT or SIGTERM sets ``is_requested``; a second one raises KeyboardInterrupt.

    Works only in the main thread, where Python delivers signals; elsewhere it does nothing.
    """

    def __init__(self, on_request: Callable[[], None]) -> None:
        """``on_request`` should tell the user that the run stops after this step."""
        self.signal: signal.Signals | None = None
        """The first one that came."""
        self._on_request = on_request
        self._previous: dict[int, object] = {}

    @property
    def is_requested(self) -> bool:
        """Whether one came."""
        return self.signal is not None

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:
                # Only the main thread gets signals.
                return self
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        self._on_request()
