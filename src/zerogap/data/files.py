"""Prompts from user files.

Strict: an invalid line stops the load, and one message lists all invalid lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerogap.data.items import PromptItem
from zerogap.errors import DataError, MissingExtra

_NUM_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Field names of a line; all other fields become ``metadata``."""

    prompt: str
    """Field with the question (text), chat messages (list of objects) or ids (list of integers)."""
    answer: str | None = None
    """Field with the reference answer, text or number; None: no answers."""
    rejected: str | None = None
    """Field with a rejected answer, text or number; None: no rejected answers."""


def load_jsonl(path: Path, fields: Fields) -> list[PromptItem]:
    """One prompt per line; every line is a JSON object.

    Args:
        path: UTF-8 file.
        fields: names of the fields.

    Raises:
        DataError: the file is unreadable or has invalid lines; the message gives number and problem of each.
    """
    path = _existing(path)
    return _items(path, _jsonl_rows(path.read_bytes()), fields, unit="line")


def load_parquet(path: Path, fields: Fields) -> list[PromptItem]:
    """One prompt per row; fields are columns. Arguments and errors as in ``load_jsonl``."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        msg = f"data.path = {str(path)!r}: reading parquet needs pyarrow; install it with pip install 'zerogap[parquet]'"
        raise MissingExtra(msg) from error
    path = _existing(path)
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        msg = f"{path} cannot be read as parquet ({error}); check data.path and data.kind"
        raise DataError(msg) from error
    return _items(path, enumerate(rows, start=1), fields, unit="row")


def _existing(path: Path) -> Path:
    path = Path(path)
    if not path.is_file():
        msg = f"data.path = {str(path)!r}: no such file (working directory {Path.cwd()}); correct the path"
        raise DataError(msg)
    return path


def _items(
    path: Path, rows: Iterable[tuple[int, Any]], fields: Fields, *, unit: str
) -> list[PromptItem]:
    items, problems = [], []
    for number, row in rows:
        try:
            items.append(_item(f"{path.stem}-{number}", row, fields))
        except DataError as error:
            problems.append(f"{unit} {number}: {error}")
    if problems:
        more = f"\n  and {len(problems) - _NUM_SHOWN} more" if len(problems) > _NUM_SHOWN else ""
        listed = "\n  ".join(problems[:_NUM_SHOWN])
        msg = (
            f"{path} has {len(problems)} invalid {unit}s; correct or remove them:\n  {listed}{more}"
        )
        raise DataError(msg)
    if not items:
        msg = f"{path} has no prompts; a prompt is one JSON object per line, or one table row"
        raise DataError(msg)
    return items


def _jsonl_rows(content: bytes) -> Iterator[tuple[int, Any]]:
    """(line number from 1, parsed line or the error of parsing it)."""
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            yield (
                number,
                json.loads(
                    line.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
                ),
            )
        except ValueError as error:
            yield number, error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"field {twice!r} occurs twice"
        raise ValueError(msg)
    return fields


def _no_constant(name: str) -> None:
    msg = f"{name} is not JSON"
    raise ValueError(msg)


def _item(item_id: str, row: object, fields: Fields) -> PromptItem:
    if isinstance(row, ValueError):
        msg = f"not valid JSON: {row}"
        raise DataError(msg)
    if not isinstance(row, dict):
        msg = f"a {type(row).__name__}, not an object with the field {fields.prompt!r}"
        raise DataError(msg)
    used = (fields.prompt, fields.answer, fields.rejected)
    return PromptItem(
        item_id=item_id,
        **_prompt(_field(row, fields.prompt), fields.prompt),
        answer=_answer(row, fields.answer),
        rejected=_answer(row, fields.rejected),
        metadata={name: value for name, value in row.items() if name not in used},
    )


def _field(row: Mapping[str, Any], name: str) -> object:
    if row.get(name) is None:
        msg = f"no field {name!r}; the fields are {', '.join(map(repr, row)) or 'none'}"
        raise DataError(msg)
    return row[name]


def _prompt(value: object, name: str) -> dict[str, Any]:
    if isinstance(value, str) and value.strip():
        return {"question": value}
    if isinstance(value, list) and value:
        if all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and "content" in m for m in value
        ):
            return {"messages": tuple(value)}
        if all(type(i) is int for i in value):
            return {"prompt_ids": tuple(value)}
    msg = f"{name!r} is {json.dumps(value, default=str)[:80]}; it must be non-empty text, a list of messages with role and content, or a list of token ids"
    raise DataError(msg)


def _answer(row: Mapping[str, Any], name: str | None) -> str | None:
    if name is None:
        return None
    value = _field(row, name)
    if isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return str(value)
    msg = f"{name!r} is {json.dumps(value, default=str)[:80]}; an answer must be text or a number"
    raise DataError(msg)
