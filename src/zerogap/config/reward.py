"""[reward]: how a completion is graded. A union on ``kind``; ``weighted_sum`` adds several of the other kinds.

docs/algorithms.md describes them, and the function of ``import``.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from zerogap.section import Section, TomlValue


class RewardSection(Section):
    """What every kind of reward may have."""

    range: tuple[float, float] | None = Field(None, strict=False)
    """Smallest and largest allowed value, such as ``[0, 1]``. A value outside is a failed verifier with the value named, never a
    reward; none: any number up to 1e9 in magnitude."""

    def problems(self) -> Iterator[str]:
        """A range without two different values."""
        if self.range is not None and not self.range[0] < self.range[1]:
            yield f"range = {list(self.range)}: the first number must be smaller than the second; write [smallest, largest]"


class ExactReward(RewardSection):
    """1 if the completion equals the reference answer up to surrounding white space, else 0."""

    kind: Literal["exact"]
    """Equal text."""


class LastNumberReward(RewardSection):
    """1 if the last number in the completion equals the reference answer as a number, else 0."""

    kind: Literal["last_number"]
    """Equal last number."""


class RegexReward(RewardSection):
    """1 if the last match of ``pattern`` captures the reference answer, else 0."""

    kind: Literal["regex"]
    """Equal captured text."""
    pattern: str
    """Regular expression whose first group is the answer, such as ``<answer>(.*?)</answer>``."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one match; beyond it the outcome is a failed verifier, not reward 0. Some patterns take years on some texts."""

    def problems(self) -> Iterator[str]:
        """A pattern that does not compile or captures nothing."""
        yield from super().problems()
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            yield f"pattern = {self.pattern!r}: not a regular expression ({error}); correct it (in TOML, quote it with ' to keep backslashes)"
            return
        if groups < 1:
            yield f"pattern = {self.pattern!r}: it has no group, and the first group is the answer; put the answer's part in parentheses"


class MathVerifyReward(RewardSection):
    """1 if math-verify finds the completion's final answer equal to the reference, else 0 (extra ``math``)."""

    kind: Literal["math_verify"]
    """Equal as mathematics."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one grading; beyond it the outcome is a failed verifier, not reward 0."""


class TaskReward(RewardSection):
    """The task's own score between 0 and 1, for data.kind = "reasoning_gym" or "builtin"."""

    kind: Literal["task"]
    """The task's own score."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one score of reasoning-gym's, which may evaluate what a policy writes; beyond it the outcome is a failed
    verifier. The scores of built-in tasks are quick and need none."""


class ImportReward(RewardSection):
    """Your own function."""

    kind: Literal["import"]
    """An imported function."""
    function: str
    """``module:function``, importable from the working directory. The names of its parameters say how it is called:
    ``(completion, item, sample)`` or ``(completions, item, samples)`` are ours, ``(completions, **columns)`` is TRL's and
    ``(data_source, solution_str, ground_truth, extra_info=None)`` is verl's."""
    takes: Literal["completion", "group"] | None = None
    """What one call gets: a completion, or all completions of a prompt (group); none: what the parameters of the function say."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""
    timeout_s: float = Field(10.0, gt=0)
    """Time limit of one call; beyond it the outcome is a failed verifier, not reward 0."""

    def problems(self) -> Iterator[str]:
        """A path that is not module:function."""
        yield from super().problems()
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", self.function):
            yield f"function = {self.function!r}: not module:function; {_module_of_file(self.function)}for the function f in the file my/reward.py write my.reward:f, and start the run where my/ is"


class RewardPart(Section):
    """What a part of a weighted sum has beside the keys of its kind."""

    weight: float = Field(1.0, ge=-1e9, le=1e9)
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


class WeightedSumReward(RewardSection):
    """The weighted sum of several rewards; each is recorded by its name."""

    kind: Literal["weighted_sum"]
    """Several rewards."""
    parts: dict[str, PartConfig]
    """By name: the keys of another kind, ``weight`` and ``normalize``. Each has a metric ``reward/NAME/mean``."""

    def problems(self) -> Iterator[str]:
        """No part, no weight, or a name that cannot be in a metric's."""
        yield from super().problems()
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


def _module_of_file(path: str) -> str:
    """What a path of a file means as a module; empty if it is no such path."""
    found = re.fullmatch(r"(?:\./)?([\w/]+)\.py(?::(\w+))?", path)
    if found is None:
        return ""
    return f"did you mean {found[1].strip('/').replace('/', '.')}:{found[2] or 'FUNCTION'}? "
