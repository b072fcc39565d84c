"""Re-encoding: decode a sample's ids to text, encode the text, and compare the ids.

Most tokenizers can write one text as several id sequences, and a policy may sample any of them: the pieces "he" and
"llo" come back as "hello". zerogap never re-encodes a conversation; this module measures what that would change.

Letters: T tokens of the sample, U tokens after re-encoding.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from zerogap.data.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
"""Replaces bytes that are not UTF-8; at the end of a piece they may be the start of a character."""


@dataclass(frozen=True, eq=False)
class Reencoding:
    """The re-encoded ids, and how they match the original ids."""

    token_ids: np.ndarray
    """int32 [U]."""
    partner_T: np.ndarray
    """int64 [T]: index in ``token_ids`` of the same id at the same place of the text; -1 if there is none."""

    @property
    def is_same(self) -> bool:
        """Whether re-encoding gave the original ids."""
        return len(self.token_ids) == len(self.partner_T) and bool((self.partner_T >= 0).all())


def reencode(token_ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> Reencoding:
    """Decode ids (special tokens by name) and encode the text; O(T + U).

    Two tokens are partners if they have the same id and start at the same character. If the tokenizer normalises the
    text, only the parts before the first and after the last change are compared.
    """
    before = [int(i) for i in token_ids]
    text = tokenizer.decode(before, skip_special=False)
    after = tokenizer.encode(text)
    if after == before:
        return Reencoding(np.array(after, np.int32), np.arange(len(before)))
    return Reencoding(np.array(after, np.int32), _partners(before, after, text, tokenizer))


def _partners(
    before: Sequence[int], after: Sequence[int], text: str, tokenizer: Tokenizer
) -> np.ndarray:
    same = _SameText.of(text, tokenizer.decode(after, skip_special=False))
    places = {
        (same.place(piece), piece.ids(after)): piece.first for piece in _pieces(after, tokenizer)
    }
    partner_T = np.full(len(before), -1)
    for piece in _pieces(before, tokenizer):
        first = places.get((piece.char, piece.ids(before)))
        if first is not None:
            partner_T[piece.first : piece.end] = first + np.arange(piece.end - piece.first)
    return partner_T


@dataclass(frozen=True)
class _Piece:
    """The fewest tokens ``[first, end)`` that form whole characters, and where their text starts and ends."""

    first: int
    end: int
    char: int
    char_end: int

    def ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(token_ids[self.first : self.end])


def _pieces(token_ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[_Piece]:
    """Cut ids at the ends of characters. Bytes that cannot become a character are cut as soon as that is known.

    Text is decoded after the previous piece, because some decoders drop a leading blank.
    """
    anchor = first = char = 0
    known = ""  # text of the tokens from anchor to before `end`

    def decode(start: int, end: int) -> str:
        return tokenizer.decode(token_ids[start:end], skip_special=False)

    def cut(end: int) -> _Piece:
        nonlocal anchor, first, char
        length = len(decode(anchor, end)) - len(decode(anchor, first))
        piece = _Piece(first, end, char, char + length)
        anchor, first, char = first, end, char + length
        return piece

    for end in range(1, len(token_ids) + 1):
        grown = decode(anchor, end)
        if end - 1 > first and grown.startswith(known) and len(grown) > len(known):
            yield cut(end - 1)
            grown = decode(anchor, end)
        if end == len(token_ids) or not grown.endswith(_REPLACEMENT):
            yield cut(end)
        known = decode(anchor, end)


@dataclass(frozen=True)
class _SameText:
    """Which characters two texts share: all, or a common start and end."""

    shift: int
    """How much longer the second text is."""
    num_first: int
    """Number of equal characters at the start."""
    last_from: int
    """Start of the common end in the second text."""

    @classmethod
    def of(cls, text: str, other: str) -> "_SameText":
        if text == other:
            return cls(0, len(text), len(text))
        num_last = _num_equal(reversed(text), reversed(other))
        num_first = _num_equal(text, other)
        return cls(len(other) - len(text), num_first, len(other) - num_last)

    def place(self, piece: _Piece) -> int | None:
        """Where a piece of the second text starts in the first; None if the first does not have it."""
        if piece.char_end <= self.num_first:
            return piece.char
        return piece.char - self.shift if piece.char >= self.last_from else None


def _num_equal(text: Iterable[str], other: Iterable[str]) -> int:
    """Number of equal leading characters."""
    pairs = zip(text, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
