"""The supported families of models, one file each; ``docs/models.md`` explains how to add one."""

from zerogap.errors import ModelError
from zerogap.models.families.llama import LLAMA
from zerogap.models.families.qwen2 import QWEN2
from zerogap.models.families.qwen3 import QWEN3
from zerogap.models.family import Family

FAMILIES: dict[str, Family] = {family.name: family for family in (LLAMA, QWEN2, QWEN3)}
"""By name: ``model_type`` in config.json, ``family`` in a recipe."""


def find_family(name: str) -> Family:
    """The family of this name.

    Raises:
        ModelError: no family has this name.
    """
    if name not in FAMILIES:
        msg = f"model family {name!r} is not supported; supported are {sorted(FAMILIES)}"
        raise ModelError(msg)
    return FAMILIES[name]
