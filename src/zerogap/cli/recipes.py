"""``zerogap recipes`` and ``zerogap init``."""

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path


def recipes(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """List the recipes of the package, a line each."""
    from zerogap.config.recipes import first_sentence, named_recipes

    found = named_recipes()
    width = max(map(len, found)) + 2
    columns = shutil.get_terminal_size().columns
    for name, path in found.items():
        text = f"{name:<{width}}{first_sentence(path)}"
        print(textwrap.fill(text, columns, subsequent_indent=" " * width))
    print("\nzerogap train NAME runs one, zerogap init NAME copies one to be changed.")
    print("Those in losses/ and compositions/ go on top of another recipe:")
    print("zerogap train tiny losses/dapo")
    return 0


def init(arguments: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Copy a recipe of the package into a new file."""
    from zerogap.config.recipes import find_recipe, named_recipes
    from zerogap.errors import ConfigError

    source = named_recipes().get(arguments.name) or find_recipe(arguments.name)
    out = Path(arguments.out or f"{Path(arguments.name).stem}.toml")
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(source.read_text(encoding="utf-8"))
    except FileExistsError as error:
        msg = f"{out} exists, and a copy of {arguments.name} would replace it; give another name: zerogap init {arguments.name} OTHER.toml"
        raise ConfigError(msg) from error
    except FileNotFoundError as error:
        msg = f"{out}: there is no folder {out.parent}; make it first, or give another path"
        raise ConfigError(msg) from error
    print(f"{out}: change it, then run `zerogap train {out}`")
    return 0
