"""Separates ``--section.key value`` arguments from a command's own, before argparse sees them.

argparse cannot know whether the word after an unknown flag is its value.
"""

from collections.abc import Sequence

COMMANDS_WITH_RECIPES = ("train", "eval", "certify")
TOP_LEVEL_KEYS = ("numerics",)
"""Recipe keys without a section; all others have a dot."""


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(arguments for argparse, overrides with their values), each in the given order."""
    if not arguments or arguments[0] not in COMMANDS_WITH_RECIPES:
        return list(arguments), []
    own: list[str] = []
    overrides: list[str] = []
    remaining = list(arguments)
    while remaining:
        word = remaining.pop(0)
        if not _is_override(word):
            own.append(word)
            continue
        overrides.append(word)
        if "=" not in word and remaining:
            overrides.append(remaining.pop(0))
    return own, overrides


def _is_override(word: str) -> bool:
    key = word.removeprefix("--").partition("=")[0]
    return word.startswith("--") and ("." in key or key in TOP_LEVEL_KEYS)
