"""Built-in tasks, without download: how a question is drawn, and how an answer is scored.

A task is a frozen dataclass whose fields set the difficulty (``data.params`` in a recipe). It draws a ``Drawn`` from a
random stream, scores a completion from 0 to 1, and makes a plausible mistake. ``builtin.py`` splits questions into
training and evaluation by ``Drawn.key``.

The arithmetic and letter tasks are for instruction-tuned models, from 100 M parameters. ``repeat_letter``
and ``copy_letters`` are for tiny byte-level models that start as noise: their scores increase
gradually (see ``answers.character_credit``). With 0.5 M random parameters, 16 prompts by 8 completions a
step and a learning rate of 1e-3, repeat_letter goes from 0.03 to above 0.95 in about 200 steps;
copy_letters reaches 0.6.
"""

from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import Protocol

from zerogap.data.answers import character_credit, last_number, last_word, sequence_credit
from zerogap.errors import DataError

_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Drawn:
    """One question and its answer."""

    key: str
    """Questions with the same key are all for training or all for evaluation (7 * 8 and 8 * 7 share one)."""
    question: str
    answer: str


class Task(Protocol):
    """A source of questions, without split, order or size."""

    def draw(self, random: Random) -> Drawn:
        """A question; depends only on the task's fields and the stream."""
        ...

    def score(self, completion: str, answer: str) -> float:
        """How correct the completion is, in [0, 1]."""
        ...

    def mistake(self, answer: str, random: Random) -> str:
        """A wrong answer that looks plausible."""
        ...


class _NumberAnswer:
    """The answer is a number of 0 or more; the last number of a completion counts."""

    def score(self, completion: str, answer: str) -> float:
        """1 if the last number is the answer."""
        return float(last_number(completion) == Decimal(answer))

    def mistake(self, answer: str, random: Random) -> str:
        """A wrong number close to the correct one."""
        offset = random.choice([-2, -1, 1, 2])
        return str(int(answer) + (offset if int(answer) + offset >= 0 else abs(offset)))


@dataclass(frozen=True)
class _Operands(_NumberAnswer):
    low: int
    high: int

    def __post_init__(self) -> None:
        _check_range("low", self.low, "high", self.high, least=0)

    def _draw(self, random: Random, sign: str) -> Drawn:
        a, b = random.randint(self.low, self.high), random.randint(self.low, self.high)
        key = f"{min(a, b)} {max(a, b)}"
        if sign == "-":
            a, b = max(a, b), min(a, b)
        answer = {"*": a * b, "+": a + b, "-": a - b}[sign]
        return Drawn(key, f"What is {a} {sign} {b}? Reply with only the number.", str(answer))


@dataclass(frozen=True)
class Multiplication(_Operands):
    """The product of two whole numbers in [low, high]."""

    low: int = 2
    high: int = 9

    def draw(self, random: Random) -> Drawn:
        """Such as ``What is 7 * 8?``."""
        return self._draw(random, "*")


@dataclass(frozen=True)
class Addition(_Operands):
    """The sum of two whole numbers in [low, high]."""

    low: int = 1
    high: int = 20

    def draw(self, random: Random) -> Drawn:
        """Such as ``What is 7 + 8?``."""
        return self._draw(random, "+")


@dataclass(frozen=True)
class Arithmetic(_Operands):
    """Sums, differences and products of two whole numbers in [low, high]; no result is negative."""

    low: int = 1
    high: int = 9
    signs: str = "+-*"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            not self.signs
            or len(set(self.signs)) != len(self.signs)
            or set(self.signs) - set("+-*")
        ):
            msg = f"data.params: signs = {self.signs!r}: need one or more of +, - and *, each once"
            raise DataError(msg)

    def draw(self, random: Random) -> Drawn:
        """Such as ``What is 7 - 3?``."""
        sign = random.choice(self.signs)
        drawn = self._draw(random, sign)
        return replace(drawn, key=f"{sign} {drawn.key}")


@dataclass(frozen=True)
class CountLetters(_NumberAnswer):
    """How often a letter occurs in a made-up word."""

    min_length: int = 3
    max_length: int = 6

    def __post_init__(self) -> None:
        _check_range("min_length", self.min_length, "max_length", self.max_length, least=1)

    def draw(self, random: Random) -> Drawn:
        """A word of few different letters, so that counts above 1 are common."""
        word = _word(random, self.min_length, self.max_length, "".join(random.sample(_ALPHABET, 3)))
        letter = random.choice(word)
        question = f'How many times does the letter "{letter}" occur in "{word}"? Reply with only the number.'
        return Drawn(f"{word} {letter}", question, str(word.count(letter)))


@dataclass(frozen=True)
class _WordAnswer:
    """The answer is a word; the last word of a completion counts."""

    min_length: int = 3
    max_length: int = 5

    def __post_init__(self) -> None:
        _check_range("min_length", self.min_length, "max_length", self.max_length, least=1)

    def score(self, completion: str, answer: str) -> float:
        """Similarity of the last word and the answer."""
        return sequence_credit(last_word(completion), answer)

    def mistake(self, answer: str, random: Random) -> str:
        """The answer with one letter replaced, at a random place."""
        return _other_letter(answer, _ALPHABET, random)


@dataclass(frozen=True)
class SortLetters(_WordAnswer):
    """The letters of a made-up word in alphabetical order."""

    def draw(self, random: Random) -> Drawn:
        """Words with the same letters share a key, because they have the same answer."""
        word = _word(random, self.min_length, self.max_length, _ALPHABET)
        answer = "".join(sorted(word))
        return Drawn(
            answer,
            f'Write the letters of "{word}" in alphabetical order. Reply with only the result.',
            answer,
        )


@dataclass(frozen=True)
class Reverse(_WordAnswer):
    """A made-up word read backwards."""

    max_length: int = 4

    def draw(self, random: Random) -> Drawn:
        """Such as ``Write "abc" backwards.``."""
        word = _word(random, self.min_length, self.max_length, _ALPHABET)
        return Drawn(word, f'Write "{word}" backwards. Reply with only the result.', word[::-1])


@dataclass(frozen=True)
class _LetterAnswer:
    """The answer is compared letter by letter, so that a score rises gradually."""

    letters: str = "abcdefgh"

    def score(self, completion: str, answer: str) -> float:
        """Mean credit of the characters."""
        return character_credit(completion, answer, alphabet=self.letters)

    def mistake(self, answer: str, random: Random) -> str:
        """The answer with one letter replaced, at a random place."""
        return _other_letter(answer, self.letters, random)


@dataclass(frozen=True)
class RepeatLetter(_LetterAnswer):
    """Repeat the last letter of the prompt. Set ``max_new_tokens`` to ``times``."""

    word_length: int = 2
    times: int = 8

    def __post_init__(self) -> None:
        _check_range("1", 1, "word_length", self.word_length, least=1)
        _check_range("1", 1, "times", self.times, least=1)
        _check_letters(self.letters)

    def draw(self, random: Random) -> Drawn:
        """Prompt ``hc``, answer ``cccccccc``."""
        word = _word(random, self.word_length, self.word_length, self.letters)
        return Drawn(word, word, word[-1] * self.times)


@dataclass(frozen=True)
class CopyLetters(_LetterAnswer):
    """Copy a made-up word, then stop. Set ``max_new_tokens`` to the length, or one more."""

    length: int = 4

    def __post_init__(self) -> None:
        _check_range("1", 1, "length", self.length, least=1)
        _check_letters(self.letters)

    def draw(self, random: Random) -> Drawn:
        """Prompt ``badc>``, answer ``badc``."""
        word = _word(random, self.length, self.length, self.letters)
        return Drawn(word, f"{word}>", word)


TASKS: dict[str, type[Task]] = {
    "multiplication": Multiplication,
    "addition": Addition,
    "arithmetic": Arithmetic,
    "count_letters": CountLetters,
    "sort_letters": SortLetters,
    "reverse": Reverse,
    "repeat_letter": RepeatLetter,
    "copy_letters": CopyLetters,
}


def _word(random: Random, min_length: int, max_length: int, letters: str) -> str:
    return "".join(random.choices(letters, k=random.randint(min_length, max_length)))


def _other_letter(answer: str, letters: str, random: Random) -> str:
    wrong = random.choice(answer)
    return answer.replace(wrong, random.choice([x for x in letters if x != wrong]))


def _check_range(low_name: str, low: int, high_name: str, high: int, *, least: int) -> None:
    if not least <= low <= high:
        msg = f"data.params: {low_name} = {low}, {high_name} = {high}: need {least} <= {low_name} <= {high_name}"
        raise DataError(msg)


def _check_letters(letters: str) -> None:
    if len(set(letters)) != len(letters) or len(letters) < 2 or not set(letters) <= set(_ALPHABET):
        msg = f"data.params: letters = {letters!r}: need at least two different lower-case letters, each once"
        raise DataError(msg)
