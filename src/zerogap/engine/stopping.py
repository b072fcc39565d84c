"""When a completion ends, and which text a caller sees.

Ids decide first: the model's end-of-sequence ids and the request's own. Stop strings are searched in text that is
decoded as tokens arrive; bytes of an unfinished character are held back. A match cuts only the text: ids and log-probs
stay as drawn, and no token is ever added.
"""

from collections.abc import Callable, Sequence

import numpy as np

from zerogap.types import FinishReason, SamplingParams

Detokenizer = Callable[[Sequence[int], bool], str]
"""(ids, skip_special) -> text"""

_REPLACEMENT = "\ufffd"
_LONGEST_UNFINISHED = 3
"""Most bytes of an unfinished UTF-8 character; byte-fallback decoders show one U+FFFD for each."""


class IncrementalText:
    """Text of a growing list of ids, decoded a few tokens at a time.

    A token's text may depend on the token before it (a space is stripped at the start of a text). So a
    short window is decoded twice, with and without the new tokens; the difference is the new text.
    """

    def __init__(self, detokenizer: Detokenizer, *, skip_special: bool) -> None:
        self.text = ""
        """Decoded so far, without unfinished characters."""
        self._detokenizer = detokenizer
        self._skip_special = skip_special
        self._window_start = 0
        self._window_end = 0
        self._num_decoded = 0
        self._num_emitted = 0
        """Characters after the window that are already in ``text``."""

    def advance(self, ids: np.ndarray) -> None:
        """Decode the ids that are new since the last call; ``ids`` are all so far."""
        if len(ids) == self._num_decoded:
            return
        self._num_decoded = len(ids)
        before = self._decode(ids[self._window_start : self._window_end])
        after = self._decode(ids[self._window_start :])[len(before) :]
        unfinished = min(len(after) - len(after.rstrip(_REPLACEMENT)), _LONGEST_UNFINISHED)
        stable = after[: len(after) - unfinished]
        self.text += stable[self._num_emitted :]
        self._num_emitted = max(self._num_emitted, len(stable))
        if after and not unfinished:
            self._window_start, self._window_end, self._num_emitted = self._window_end, len(ids), 0

    def _decode(self, ids: np.ndarray) -> str:
        return self._detokenizer(ids.tolist(), self._skip_special) if len(ids) else ""


class StopConditions:
    """Watches one sequence. Each sibling needs its own."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        eos_token_ids: frozenset[int],
        detokenizer: Detokenizer | None,
    ) -> None:
        eos = frozenset() if params.ignore_eos else eos_token_ids
        self.stop_ids = eos | frozenset(params.stop_token_ids)
        self._params = params
        self._detokenizer = detokenizer
        self._incremental: IncrementalText | None = None
        if params.stop:
            self.follow_text()
        self._cut: int | None = None

    def follow_text(self) -> None:
        """Decode as tokens arrive, for stop strings or a stream. Call it before the first token."""
        if self._detokenizer is not None and self._incremental is None:
            self._incremental = IncrementalText(
                self._detokenizer, skip_special=self._params.skip_special_tokens
            )

    def check(self, output_ids: np.ndarray) -> FinishReason | None:
        """Why the completion ends with its last token; None if it goes on. Call it once for each token."""
        token = int(output_ids[-1])
        if token in self.stop_ids:
            return FinishReason("stop", matched=token)
        matched = self._find_stop_string(output_ids) if self._incremental else None
        if matched is not None:
            return FinishReason("stop", matched=matched)
        if len(output_ids) >= self._params.max_new_tokens:
            return FinishReason("length")
        return None

    def final_text(self, output_ids: np.ndarray, reason: FinishReason) -> str | None:
        """Text of the ended completion, without its stop token or stop string unless ``no_stop_trim``."""
        if self._detokenizer is None:
            return None
        if self._cut is not None:
            assert self._incremental is not None, (
                "a stop string was found in text that was never decoded"
            )
            return self._incremental.text[: self._cut]
        is_stop_id = reason.kind == "stop" and isinstance(reason.matched, int)
        num_shown = len(output_ids) - (is_stop_id and not self._params.no_stop_trim)
        return self._detokenizer(output_ids[:num_shown].tolist(), self._params.skip_special_tokens)

    def visible_text(self) -> str | None:
        """Text that later tokens cannot change: without a possible beginning of a stop string at its end."""
        if self._incremental is None:
            return None
        text = self._incremental.text
        return text[
            : len(text) - max((_overlap(text, stop) for stop in self._params.stop), default=0)
        ]

    def _find_stop_string(self, output_ids: np.ndarray) -> str | None:
        assert self._incremental is not None, "stop strings need text"
        num_before = len(self._incremental.text)
        self._incremental.advance(output_ids)
        if len(output_ids) < self._params.min_new_tokens:
            return None
        text = self._incremental.text
        # Only a match that this token completes counts: an earlier one came before min_new_tokens.
        found = [
            (text.find(stop, max(0, num_before - len(stop) + 1)), stop)
            for stop in self._params.stop
        ]
        found = [(at, stop) for at, stop in found if at >= 0]
        if not found:
            return None
        at, stop = min(found)
        self._cut = at + len(stop) if self._params.no_stop_trim else at
        return stop


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
