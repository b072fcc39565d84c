"""Turns pydantic's errors into messages: ``key = value (from where): why; what to do``."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zerogap.algorithms import presets
from zerogap.config.run import RunConfig
from zerogap.errors import ConfigError

ANY_NAME = "NAME"
"""Stands in a key for a name that the user gives to a table."""


def describe(
    error: ValidationError, tree: Mapping[str, Any], sources: Mapping[str, str]
) -> list[str]:
    """One line per problem, in the order of the sections."""
    lines: list[str] = []
    for details in error.errors():
        key = _dotted_key(details["loc"], tree)
        lines += _lines(key, details, sources)
    return lines


def known_keys(section: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all fields of all kinds, with ``NAME`` for the name of a table that the user names."""
    for name, field in section.model_fields.items():
        sections = list(sections_of(field.annotation))
        if not sections:
            yield f"{prefix}{name}"
        named = f"{ANY_NAME}." if has_named_tables(field.annotation) else ""
        for inner in sections:
            yield from known_keys(inner, f"{prefix}{name}.{named}")


def _lines(key: str, details: ErrorDetails, sources: Mapping[str, str]) -> list[str]:
    context = details.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, ConfigError):
        # A section's own check: its keys are relative to the section.
        prefix = f"{key}." if key else ""
        return [prefix + line for line in str(cause).splitlines()]
    match details["type"]:
        case "extra_forbidden":
            return [f"{key}{_origin(key, sources)}: unknown key; {_suggestion(key)}"]
        case "missing":
            return [f"{key} is missing and has no default; set it in the recipe or with --{key}"]
        case "union_tag_not_found":
            return [f"{key}.kind is missing, and {key} needs a kind; set one of {_kinds(key)}"]
        case "union_tag_invalid":
            kind = f"{key}.kind = {context['tag']!r}{_origin(f'{key}.kind', sources)}"
            named = f", or a preset: {_quoted(presets())}" if key == "loss" else ""
            return [f"{kind}: unknown kind; set one of {_kinds(key)}{named}"]
    return [f"{key} = {details['input']!r}{_origin(key, sources)}: {_reason(details)}"]


def _origin(key: str, sources: Mapping[str, str]) -> str:
    """The source of this value, of its table or of its list."""
    for given, source in sources.items():
        if f"{given}.".startswith(f"{key}.") or f"{key}.".startswith(f"{given}."):
            return f" (from {source})"
    return ""


def _reason(details: ErrorDetails) -> str:
    if details["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "this is a table, not a value; set the keys in it"
    must = details["msg"].replace("Input should be", "it must be")
    if details["type"] == "string_type":
        return f"{must}; write it in quotes, on the command line too: '\"{details['input']}\"'"
    return must


def _dotted_key(location: tuple[int | str, ...], tree: object) -> str:
    """The key as in the recipe, without the kind that pydantic inserts for a union."""
    names: list[str] = []
    at: Any = tree
    for part in location:
        table = at if isinstance(at, Mapping) else {}
        if part not in table and table.get("kind") == part:
            continue
        names.append(str(part))
        at = table.get(part)
    return ".".join(names)


def _suggestion(key: str) -> str:
    tables = _keys_by_table()
    parent, _, leaf = key.rpartition(".")
    beside = next((names for table, names in tables.items() if _is_of(parent, table)), [])
    if leaf in beside:
        return f"it belongs to another {parent}.kind; remove it, or change the kind"
    near = [f"{parent}.{name}".lstrip(".") for name in difflib.get_close_matches(leaf, beside, n=2)]
    # Perhaps the right name in the wrong table.
    near += [f"{table}.{leaf}".lstrip(".") for table, names in tables.items() if leaf in names]
    if near:
        return f"did you mean {' or '.join(dict.fromkeys(near))}?"
    return f"the keys of {parent or 'a recipe'} are {', '.join(beside)}" if beside else "remove it"


def _keys_by_table() -> dict[str, list[str]]:
    """Dotted name of each table ("" for the recipe itself) -> its keys."""
    tables: dict[str, dict[str, None]] = {}
    for key in known_keys():
        names = key.split(".")
        for i, name in enumerate(names):
            tables.setdefault(".".join(names[:i]), {})[name] = None
    return {table: list(names) for table, names in tables.items()}


def _is_of(key: str, pattern: str) -> bool:
    """Whether the key is the pattern's, with any name for ``NAME``."""
    names, wanted = key.split("."), pattern.split(".")
    return len(names) == len(wanted) and all(
        w in (name, ANY_NAME) for name, w in zip(names, wanted, strict=True)
    )


def _kinds(key: str) -> str:
    sections: list[type[BaseModel]] = [RunConfig]
    names = iter(key.split("."))
    for name in names:
        annotations = [s.model_fields[name].annotation for s in sections if name in s.model_fields]
        if any(map(has_named_tables, annotations)):
            next(names, None)
        sections = [inner for annotation in annotations for inner in sections_of(annotation)]
    kinds = (get_args(s.model_fields["kind"].annotation) for s in sections)
    return _quoted(chain.from_iterable(kinds))


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def has_named_tables(annotation: object) -> bool:
    """Whether a field holds tables under names that the user gives them."""
    return get_origin(annotation) is dict and any(sections_of(annotation))


def sections_of(annotation: object) -> Iterator[type[BaseModel]]:
    """The section classes in a field's type; empty for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from sections_of(inner)
