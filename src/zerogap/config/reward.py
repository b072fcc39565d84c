"""[reward]: how a completion is graded. A union on ``kind``."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.section import Section, TomlValue


class ExactReward(Section):
    """1 if the completion equals the reference answer up to surrounding white space, else 0."""

    kind: Literal["exact"]
    """Equal text."""


class LastNumberReward(Section):
    """1 if the last number in the completion equals the reference answer as a number, else 0."""

    kind: Literal["last_number"]
    """Equal last number."""


class RegexReward(Section):
    """1 if the last match of ``pattern`` captures the reference answer, else 0."""

    kind: Literal["regex"]
    """Equal captured text."""
    pattern: str
    """Regular expression whose first group is the answer, such as ``<answer>(.*?)</answer>``."""

    def problems(self) -> Iterator[str]:
        """A pattern that does not compile or captures nothing."""
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            yield f"pattern = {self.pattern!r}: not a regular expression ({error}); correct it (in TOML, quote it with ' to keep backslashes)"
            return
        if groups < 1:
            yield f"pattern = {self.pattern!r}: it has no group, and the first group is the answer; put the answer's part in parentheses"


class MathVerifyReward(Section):
    """1 if math-verify finds the completion's final answer equal to the reference, else 0 (extra ``math``)."""

    kind: Literal["math_verify"]
    """Equal as mathematics."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one grading; beyond it the outcome is a failed verifier, not reward 0."""


class TaskReward(Section):
    """The task's own score between 0 and 1, for data.kind = "reasoning_gym" or "builtin"."""

    kind: Literal["task"]
    """The task's own score."""


class ImportReward(Section):
    """Your own function."""

    kind: Literal["import"]
    """An imported function."""
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """``module:function``, importable from the working directory."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one call; beyond it the outcome is a failed verifier, not reward 0."""


RewardConfig = Annotated[
    ExactReward | LastNumberReward | RegexReward | MathVerifyReward | TaskReward | ImportReward,
    Field(discriminator="kind"),
]
