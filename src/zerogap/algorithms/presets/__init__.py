"""Published algorithms by name, each a TOML file of the tables that it sets: ``loss.kind = "dapo"`` expands to ``dapo.toml``."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def presets() -> dict[str, dict[str, Any]]:
    """Name of each preset -> its tables."""
    files = resources.files(__name__).iterdir()
    return {
        file.name.removesuffix(".toml"): tomllib.loads(file.read_text(encoding="utf-8"))
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(".toml")
    }
