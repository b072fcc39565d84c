"""``zerogap explain``: what a key of a recipe means."""

import argparse
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerogap.config.reference import KeyDoc


def explain(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print keys with their meaning, or list the tables."""
    from zerogap.config import reference

    if arguments.markdown:
        print(reference.markdown(), end="")
        return 0
    if not arguments.keys:
        print("\n".join(_list_of_tables()))
        return 0
    found = [entry for key in arguments.keys for entry in reference.explain(key)]
    print("\n\n".join("\n".join(described(entry)) for entry in found))
    return 0


def described(entry: "KeyDoc", *, prefix: str = "") -> Iterator[str]:
    """The lines of a key: name, values and default; then its meaning."""
    columns = shutil.get_terminal_size().columns
    of_kinds = (
        f" (kind = {' or '.join(f'{kind!r}' for kind in entry.kinds)})" if entry.kinds else ""
    )
    default = "" if entry.default == "required" else "default: "
    head = f"{entry.key}{of_kinds}: {entry.values}; {default}{entry.default}"
    for text, indent in ((head, prefix), (entry.text, f"{prefix}    ")):
        yield from textwrap.wrap(
            text,
            columns,
            initial_indent=indent,
            subsequent_indent=f"{prefix}    ",
            break_long_words=False,
        )


def _list_of_tables() -> Iterator[str]:
    from zerogap.config.reference import tables

    columns = shutil.get_terminal_size().columns
    for table in tables():
        kinds = f" kind = {' or '.join(f'{kind!r}' for kind in table.kinds)}" if table.kinds else ""
        names = ", ".join(entry.key.rpartition(".")[2] for entry in table.keys)
        head = f"[{table.name}]{kinds}" if table.name else "(outside all tables)"
        yield textwrap.fill(
            f"{head}: {names}", columns, subsequent_indent="    ", break_long_words=False
        )
    yield ""
    yield "zerogap explain TABLE or TABLE.KEY says what they mean."
