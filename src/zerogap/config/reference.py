"""Every key of a recipe with its meaning, from the sections' own docstrings: for ``zerogap explain`` and docs/recipe.md."""

import difflib
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from zerogap.algorithms import presets
from zerogap.config.problems import ANY_NAME, has_named_tables, sections_of
from zerogap.config.run import RunConfig
from zerogap.errors import ConfigError

_HEAD = """# Every key of a recipe

A recipe is a TOML file; any key may be given on the command line as `--section.key value`. `zerogap explain KEY` prints one of these,
`zerogap train RECIPE --dry-run --explain` all of a recipe with their values. This page is written by `zerogap explain --markdown`.
"""
_WORDS = {int: "integer", float: "number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class KeyDoc:
    """One key in one table, or in several kinds of it."""

    key: str
    """Dotted; ``NAME`` stands for a name that the user gives to a table."""
    kinds: tuple[str, ...]
    """Kinds of its table that have it like this; () if the table has no kinds."""
    values: str
    default: str
    text: str


@dataclass(frozen=True)
class TableDoc:
    """A table of a recipe, or one kind of it."""

    name: str
    """Dotted; empty for the keys outside all tables."""
    kinds: tuple[str, ...]
    text: str
    keys: tuple[KeyDoc, ...]


@cache
def tables() -> list[TableDoc]:
    """All tables in the order of a recipe."""
    return [
        replace(table, keys=tuple(map(_with_presets, table.keys)))
        for table in _tables(RunConfig, "", "Keys outside all tables.", ())
    ]


def _with_presets(entry: KeyDoc) -> KeyDoc:
    if entry.key != "loss.kind":
        return entry
    names = ", ".join(f'"{name}"' for name in presets())
    return replace(
        entry, values=f"{entry.values}; or a preset, which sets other tables too: {names}"
    )


def markdown() -> str:
    """docs/recipe.md."""
    parts = [_HEAD]
    for table in tables():
        kinds = " or ".join(f'`kind = "{kind}"`' for kind in table.kinds)
        title = f"`[{table.name}]`" if table.name else "Keys outside all tables"
        parts.append(f"## {title}{f', {kinds}' if kinds else ''}\n")
        if table.name:
            parts.append(f"{table.text}\n")
        if table.keys:
            parts.append("| key | values | default | meaning |\n| --- | --- | --- | --- |")
            parts += [
                f"| `{entry.key.rpartition('.')[2]}` | {_cell(entry.values)} | {_cell(entry.default)} | {_cell(entry.text)} |"
                for entry in table.keys
            ]
            parts.append("")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def explain(key: str) -> list[KeyDoc]:
    """What is known of a key; of a table, all its keys.

    Raises:
        ConfigError: there is no such key.
    """
    known = _merged(entry for table in tables() for entry in table.keys)
    found = [entry for entry in known if _matches(key, entry.key)]
    if not found:
        found = [entry for entry in known if _matches(key, entry.key.rpartition(".")[0])]
    if not found:
        names = {entry.key for entry in known}
        leaf = key.rpartition(".")[2]
        near = [n for n in sorted(names) if n.rpartition(".")[2] == leaf]
        near += difflib.get_close_matches(key, names, n=3)
        hint = f"did you mean {' or '.join(dict.fromkeys(near[:3]))}?" if near else "`zerogap explain` lists all"  # fmt: skip
        msg = f"{key}: a recipe has no such key; {hint}"
        raise ConfigError(msg)
    return found


def key_of(key: str, kind: object) -> KeyDoc | None:
    """What is known of one key in a table of this kind; None for a parameter that the user names."""
    entries = (entry for table in tables() for entry in table.keys)
    return next((e for e in entries if _matches(key, e.key) and (not e.kinds or kind in e.kinds)), None)  # fmt: skip


def _matches(given: str, known: str) -> bool:
    names, wanted = given.split("."), known.split(".")
    return len(names) == len(wanted) and all(
        w in (name, ANY_NAME) for name, w in zip(names, wanted, strict=True)
    )


def _merged(entries: Iterator[KeyDoc]) -> list[KeyDoc]:
    """Equal entries of several kinds become one."""
    kinds: dict[tuple[str, str, str, str], dict[str, None]] = {}
    for e in entries:
        kinds.setdefault((e.key, e.values, e.default, e.text), {}).update(dict.fromkeys(e.kinds))
    return [
        KeyDoc(key, tuple(found), values, default, text)
        for (key, values, default, text), found in kinds.items()
    ]


def _tables(
    section: type[BaseModel], name: str, text: str, kinds: tuple[str, ...]
) -> Iterator[TableDoc]:
    keys, inner = [], []
    for field_name, field in section.model_fields.items():
        dotted = f"{name}.{field_name}".lstrip(".")
        if nested := list(sections_of(field.annotation)):
            place = f"{dotted}.{ANY_NAME}" if has_named_tables(field.annotation) else dotted
            inner += [(s, place, field.description, len(nested) > 1) for s in nested]
        else:
            keys.append(
                KeyDoc(dotted, kinds, _values(field), _default(field), _plain(field.description))
            )
    yield TableDoc(name, kinds, text, tuple(keys))
    for nested_section, place, described, is_one_of_many in inner:
        if is_one_of_many:
            own = inspect.cleandoc(nested_section.__doc__ or "").split("\n\n")[0]
            selected_by = get_args(nested_section.model_fields["kind"].annotation)
            yield from _tables(nested_section, place, _plain(own), selected_by)
        else:
            yield from _tables(nested_section, place, _plain(described), ())


def _values(field: FieldInfo) -> str:
    text = _type(field.annotation)
    limits = {}
    for entry in field.metadata:
        match entry:
            case Ge(ge=bound):
                limits["low"] = f"{bound} or more"
            case Gt(gt=bound):
                limits["low"] = f"above {bound}"
            case Le(le=bound):
                limits["high"] = f"{bound} or less"
            case Lt(lt=bound):
                limits["high"] = f"below {bound}"
            case MinLen(min_length=bound):
                limits["low"] = f"{bound} or more of them" if "list" in text else ""
            case MaxLen(max_length=bound):
                limits["high"] = f"at most {bound} of them"
    return ", ".join([text, *filter(None, limits.values())])


def _type(annotation: Any) -> str:  # noqa: ANN401 - any type
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " or ".join(_literal(value) for value in arguments)
    if origin in (Union, UnionType):
        texts = dict.fromkeys(_type(a) for a in arguments if a is not NoneType)
        return " or ".join(texts)
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}" if arguments else "list"
    if origin in (dict, Mapping):
        return "table"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(_literal(member.value) for member in annotation)
    return _WORDS.get(annotation, "value")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "none"
    return _literal(value)


def _literal(value: object) -> str:
    """As in TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return "{}" if not value else str(value)
    return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _plain(text: str | None) -> str:
    """One paragraph, with code as in Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join((text or "").split()))
