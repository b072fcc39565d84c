"""What a conversation's ids become when they are decoded to text and encoded again.

Most tokenizers have several strings of ids for one text, and a policy may draw any of them: the pieces "he" and "llo"
come back as "hello". Nothing in zerogap encodes a conversation twice; this measures what it would change.

Letters: T tokens of the record, U tokens of its text encoded again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from zerogap.data.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
"""What bytes that are no UTF-8 decode to; at the end of a piece, they may be the beginning of a character."""


@dataclass(frozen=True, eq=False)
class Reencoding:
    """The ids of a text that was decoded, and which of them are the ones it was decoded from."""

    token_ids: np.ndarray
    """int32 [U]."""
    partner_T: np.ndarray
    """int64 [T]: where in ``token_ids`` the same id stands for the same place of the text; -1 where none does."""

    @property
    def is_same(self) -> bool:
        """Whether encoding gave back what was decoded."""
        return len(self.token_ids) == len(self.partner_T) and bool((self.partner_T >= 0).all())


def reencode(token_ids: Sequence[int] | np.ndarray, tokenizer: Tokenizer) -> Reencoding:
    """Decode ids, special tokens by their names, and encode the text again; O(T + U).

    Two tokens are partners if they have one id and begin at one character of the text. Where a tokenizer's
    normalisation changes the text, only what stands before the first and behind the last change is compared.
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
    """Tokens ``[first, end)``, the fewest that are whole characters, and where their text begins and ends."""

    first: int
    end: int
    char: int
    char_end: int

    def ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(token_ids[self.first : self.end])


def _pieces(token_ids: Sequence[int], tokenizer: Tokenizer) -> Iterator[_Piece]:
    """Cut ids where a character ends. Bytes that never become one are cut as soon as that is known.

    Text is decoded behind the piece before it: some decoders drop a blank at the very beginning.
    """
    anchor = first = char = 0
    known = ""  # of the tokens from anchor to the one before `end`

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
    """Which characters of two texts are the same ones: all, or the beginning and the end."""

    shift: int
    """What the second text is longer by."""
    num_first: int
    """Equal characters at the beginning."""
    last_from: int
    """Where the equal end begins in the second text."""

    @classmethod
    def of(cls, text: str, other: str) -> "_SameText":
        if text == other:
            return cls(0, len(text), len(text))
        num_last = _num_equal(reversed(text), reversed(other))
        num_first = _num_equal(text, other)
        return cls(len(other) - len(text), num_first, len(other) - num_last)

    def place(self, piece: _Piece) -> int | None:
        """Where a piece of the second text begins in the first; None if it is not there."""
        if piece.char_end <= self.num_first:
            return piece.char
        return piece.char - self.shift if piece.char >= self.last_from else None


def _num_equal(text: Iterable[str], other: Iterable[str]) -> int:
    """Characters that are equal before the first that is not."""
    pairs = zip(text, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
