"""The base of every configuration section."""

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zerogap.errors import ConfigError

TomlValue = bool | int | float | str | list[Any]
"""Values of a free-form parameter; no tables."""

# TOML and JSON have only lists, and strict mode would refuse them for a tuple.
Strings = Annotated[tuple[str, ...], Field(strict=False)]
Integers = Annotated[tuple[int, ...], Field(strict=False)]


class Section(BaseModel):
    """A frozen table of a recipe: unknown keys and wrong types are errors.

    Users read the field docstrings; they name units and special values.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    @model_validator(mode="after")
    def _no_impossible_combination(self) -> "Section":
        if problems := list(self.problems()):
            raise ConfigError("\n".join(problems))
        return self

    def problems(self) -> Iterator[str]:
        """Impossible combinations of this section's values, each as ``key = value: why; what to do``.

        Keys are relative to this section; the loader adds the path.
        """
        return iter(())
