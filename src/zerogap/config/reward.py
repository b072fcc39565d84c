"""[reward]: how a completion is graded. A union on ``kind``; ``weighted_sum`` adds several of the other kinds.

docs/algorithms.md describes them, and the function of ``import``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from zerogap.config.section import Section, TomlValue


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
    takes: Literal["completion", "group"] = "completion"
    """What one call gets. completion: a text, its prompt and its sample, for one reward; group: the texts and samples of a
    prompt's rollouts, for a list of rewards in their order."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one call; beyond it the outcome is a failed verifier, not reward 0."""


class RewardPart(Section):
    """What a part of a weighted sum has beside the keys of its kind."""

    weight: float = 1.0
    """Factor of the part in the reward; below 0 it is a penalty, and with 0 it is only measured."""
    normalize: Literal["none", "group"] = "none"
    """none: the advantage sees the part as it is; group: the part is centred and divided by its standard deviation within
    the group before the weighted sum (GDPO). The reward of a sample is the weighted sum of the raw parts in both cases."""


class ExactPart(RewardPart, ExactReward):
    """``exact`` in a weighted sum."""


class LastNumberPart(RewardPart, LastNumberReward):
    """``last_number`` in a weighted sum."""


class RegexPart(RewardPart, RegexReward):
    """``regex`` in a weighted sum."""


class MathVerifyPart(RewardPart, MathVerifyReward):
    """``math_verify`` in a weighted sum."""


class TaskPart(RewardPart, TaskReward):
    """``task`` in a weighted sum."""


class ImportPart(RewardPart, ImportReward):
    """``import`` in a weighted sum."""


PartConfig = Annotated[
    ExactPart | LastNumberPart | RegexPart | MathVerifyPart | TaskPart | ImportPart,
    Field(discriminator="kind"),
]


class WeightedSumReward(Section):
    """The weighted sum of several rewards; each is recorded by its name."""

    kind: Literal["weighted_sum"]
    """Several rewards."""
    parts: dict[str, PartConfig]
    """By name: the keys of another kind, ``weight`` and ``normalize``. Each has a metric ``reward/NAME/mean``."""

    def problems(self) -> Iterator[str]:
        """No part, no weight, or a name that cannot be in a metric's."""
        if not self.parts:
            yield "parts = {}: a sum of no rewards trains nothing; add a table reward.parts.NAME for each reward"
        elif not any(part.weight for part in self.parts.values()):
            yield f"parts: every weight is 0 ({', '.join(self.parts)}), so all rewards are equal and nothing trains; give at least one part a weight"
        for name in self.parts:
            if not re.fullmatch(r"\w+", name):
                yield f"parts.{name}: the name becomes part of a metric's name; use letters, digits and _"


SingleReward = (
    ExactReward | LastNumberReward | RegexReward | MathVerifyReward | TaskReward | ImportReward
)
"""The kinds that are not made of others."""
RewardConfig = Annotated[SingleReward | WeightedSumReward, Field(discriminator="kind")]


def reward_parts(config: RewardConfig) -> Mapping[str, RewardPart]:
    """Weight and normalization of the parts of a weighted sum, by name; empty for another reward."""
    return config.parts if isinstance(config, WeightedSumReward) else {}


def single_rewards(config: RewardConfig) -> Mapping[str, SingleReward]:
    """The rewards that a section computes, by their dotted keys."""
    if isinstance(config, WeightedSumReward):
        return {f"reward.parts.{name}": part for name, part in config.parts.items()}
    return {"reward": config}
