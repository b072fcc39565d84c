"""The recipes that the package brings: found by name, listed, copied."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

from zerogap.errors import ConfigError

_END = re.compile(r"(?<!\bDr)\. ")
_IN_WHEEL = Path(__file__).parents[1] / "recipes"
_IN_CHECKOUT = Path(__file__).parents[3] / "recipes"


def named_recipes() -> Mapping[str, Path]:
    """Name (``quickstart``, ``losses/dapo``) -> file. Recipes of the top folder come first."""
    folder = _IN_WHEEL if _IN_WHEEL.exists() else _IN_CHECKOUT
    files = sorted(folder.rglob("*.toml"), key=lambda path: (len(path.parts), path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in files}


def find_recipe(given: str | Path) -> Path:
    """A file, or the recipe of this name; a file of the same name goes first.

    Raises:
        ConfigError: there is neither.
    """
    path, named = Path(given), named_recipes()
    # A folder may have the name of a recipe: that of its run, for example.
    if str(given) in named and not path.is_file():
        return named[str(given)]
    if path.exists():
        return path
    if path.suffix == ".toml":
        others = sorted(other.name for other in path.parent.glob("*.toml"))
        hint = f"{path.parent}/ has {', '.join(others)}" if others else "check the path, or run `zerogap recipes` for those of the package"  # fmt: skip
        msg = f"recipe {given}: no such file; {hint}"
        raise ConfigError(msg)
    near = difflib.get_close_matches(str(given), named, n=1)
    hint = f"did you mean {near[0]}?" if near else "run `zerogap recipes` for the names"
    msg = f"recipe {given}: neither a file nor a recipe of the package; {hint}"
    raise ConfigError(msg)


def first_sentence(path: Path) -> str:
    """The first sentence of the comment that a recipe begins with."""
    lines: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or not (text := line.removeprefix("#").strip()):
            break
        lines.append(text)
    return _END.split(" ".join(lines))[0].rstrip(".:")
