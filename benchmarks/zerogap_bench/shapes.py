"""The size of a run: prompts x answers x new tokens, as ``8x8x64``."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class RunShape:
    """The size of one run."""

    num_prompts: int
    group_size: int
    """Answers to each prompt."""
    max_new_tokens: int
    """Tokens of every answer; end tokens are ignored."""

    @property
    def num_sequences(self) -> int:
        """Total number of answers."""
        return self.num_prompts * self.group_size

    @property
    def num_output_tokens(self) -> int:
        """Total number of generated tokens."""
        return self.num_sequences * self.max_new_tokens

    def __str__(self) -> str:
        return f"{self.num_prompts}x{self.group_size}x{self.max_new_tokens}"

    @classmethod
    def parse(cls, text: str) -> "RunShape":
        """From ``8x8x64``."""
        parts = text.split("x")
        if len(parts) != 3 or not all(part.isdecimal() and int(part) > 0 for part in parts):
            msg = f"{text!r} is not a shape; write prompts x answers x new tokens, such as 8x8x64"
            raise argparse.ArgumentTypeError(msg)
        return cls(*map(int, parts))

    @classmethod
    def parse_list(cls, text: str) -> "list[RunShape]":
        """From ``8x8x64,32x8x64``."""
        return [cls.parse(part) for part in text.split(",")]
