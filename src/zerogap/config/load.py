"""Loads recipes and flags into a RunConfig, and writes it back as TOML.

Later layers win: defaults, TOML files left to right, then ``--section.key value``. Tables merge key by key; lists are
replaced; a table whose ``kind`` changes is replaced too, because its keys belong to the old kind. A preset named by
``loss.kind`` lies below all layers.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from zerogap.algorithms import presets
from zerogap.config.problems import describe
from zerogap.config.recipes import find_recipe
from zerogap.config.run import RunConfig
from zerogap.errors import ConfigError

Tree = dict[str, Any]


@dataclass(frozen=True)
class ResolvedConfig:
    """A config and the sources of its values."""

    config: RunConfig
    sources: Mapping[str, str]
    """Dotted key of each given value -> the file or flag that gave it; defaults are absent."""


def load_config(recipes: Sequence[str | Path], overrides: Sequence[str] = ()) -> ResolvedConfig:
    """The run that these recipes and ``--section.key value`` arguments describe; a recipe is a file, or one of the package's by name.

    Raises:
        ConfigError: all problems in one message.
    """
    layers = [(str(path), _read(find_recipe(path))) for path in recipes]
    if layers:
        layers.insert(0, ("the recipe's name", {"run": {"dir": f"runs/{Path(recipes[0]).stem}"}}))
    tree, sources = _with_preset(*_merge_layers([*layers, *_override_layers(overrides)]))
    return ResolvedConfig(_validate(tree, sources), sources)


def config_from_toml(text: str) -> RunConfig:
    """The inverse of ``config_to_toml``."""
    return _validate(tomllib.loads(text), {})


def config_to_toml(config: RunConfig) -> str:
    """All values as TOML, including defaults. TOML cannot express None, so keys without a value are left out."""
    return tomli_w.dumps(_without_none(config.model_dump(mode="json")))


def _validate(tree: Tree, sources: Mapping[str, str]) -> RunConfig:
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        lines = describe(error, tree, sources)
    title = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    message = "\n  ".join([f"the configuration has {title}:", *lines])
    raise ConfigError(message)


def _read(path: Path) -> Tree:
    try:
        # Editors on Windows start files with a byte order mark.
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        msg = f"recipe {path}: not UTF-8 at byte {error.start}; save the file as UTF-8"
        raise ConfigError(msg) from error
    except OSError as error:
        msg = f"recipe {path}: cannot be read: {error.strerror}; give the path of a TOML file"
        raise ConfigError(msg) from error
    except ValueError as error:  # TOMLDecodeError, UnicodeDecodeError
        msg = f"recipe {path}: not TOML: {error}; correct it there (strings need quotes)"
        raise ConfigError(msg) from error


def _override_layers(arguments: Sequence[str]) -> Iterator[tuple[str, Tree]]:
    """One layer for all flags, so ``--data.kind`` does not drop the keys that other flags set."""
    tree: Tree = {}
    for key, text in _override_pairs(arguments):
        table = tree
        *parents, leaf = key.split(".")
        for name in parents:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                msg = f"--{key}: an earlier flag set {name} to a value, so it cannot have keys; keep one of the two flags"
                raise ConfigError(msg)
        table[leaf] = _parse_value(text)
    if tree:
        yield "flags", tree


def _override_pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    remaining = list(arguments)
    while remaining:
        flag = remaining.pop(0)
        key, equals, text = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or not all(key.split(".")):
            msg = f"{flag!r}: neither a recipe file nor a flag; write --section.key value"
            raise ConfigError(msg)
        if not equals:
            if not remaining:
                msg = f"{flag} has no value; write {flag} VALUE"
                raise ConfigError(msg)
            text = remaining.pop(0)
        yield key, text


def _parse_value(text: str) -> object:
    """A TOML value; anything else, such as a bare word or a path, is a string."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if parsed.keys() == {"value"} else text


def _merge_layers(layers: Sequence[tuple[str, Tree]]) -> tuple[Tree, dict[str, str]]:
    tree: Tree = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        tree = _merge(tree, layer)
        given = dict(_leaves(layer))
        sources |= {key: f"--{key}" if source == "flags" else source for key in given}
    present = dict(_leaves(tree))
    return tree, {key: source for key, source in sources.items() if key in present}


def _merge(below: Tree, above: Tree) -> Tree:
    if "kind" in above and above["kind"] != below.get("kind", above["kind"]):
        return above
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        is_table = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if is_table else value
    return merged


def _with_preset(tree: Tree, sources: dict[str, str]) -> tuple[Tree, dict[str, str]]:
    """The tables of the preset that ``loss.kind`` names, below the given ones; without a kind that of GRPO."""
    loss = tree.get("loss", {})
    name = loss.get("kind", "grpo") if isinstance(loss, dict) else None
    preset = presets().get(name) if isinstance(name, str) else None
    if preset is None:
        # A loss without a preset of its name: only the default kind of advantage, for tables that name none.
        preset, given = {"advantage": {"kind": "group"}} if "advantage" in tree else {}, tree
    else:
        own_loss = {key: value for key, value in loss.items() if key != "kind"}
        given = {**tree, **({"loss": own_loss} if own_loss or "loss" in tree else {})}
    merged = _merge(preset, given)
    origin = f'the preset "{name}"'
    expanded = {key: origin for key, _ in _leaves(preset)}
    present = dict(_leaves(merged))
    sources = {key: value for key, value in (expanded | sources).items() if key in present}
    if name in presets() and "kind" in loss:
        sources["loss.kind"] += f" (from {origin})"
    return merged, sources


def _leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _without_none(tree: Tree) -> Tree:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }
