"""What every loss declares. A loss is a section of a recipe: its options are fields, its formula is a method."""

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from zerogap.algorithms.denominators import Denominator
from zerogap.algorithms.terms import Level, LossTerms, Surrogate
from zerogap.section import Section


class Loss(Section):
    """[loss]: the objective."""

    kind: str
    """Which objective; the name of a preset sets several tables."""
    trains_on_completions: ClassVar[bool] = True
    """Whether it trains on sampled completions; otherwise on the data set's answers."""
    compares_answers: ClassVar[bool] = False
    """Whether each prompt needs a rejected answer beside its reference answer."""
    compares_with_engine: ClassVar[bool] = False
    """Whether its ratio is against the engine's log-probs, so that importance weights would count the gap twice."""
    needs_reference: ClassVar[bool] = False
    """Whether the loss itself compares with the initial policy; a KL penalty does so beside it."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """The term of each token, to be minimised, with gradient."""
        raise NotImplementedError


class PolicyLoss(Loss):
    """A loss on sampled completions, weighted by advantages."""

    denominator: Denominator = "token"
    """What the sum of token losses is divided by. token: all trainable tokens of the update; sample, group, rollout: the
    tokens of each, then their number; constant: the number of samples times constant_denominator."""
    constant_denominator: int | None = Field(None, ge=1)
    """Tokens that each sample counts as, for denominator = "constant"; rollout.sampling.max_new_tokens is usual."""

    def problems(self) -> Iterator[str]:
        """A constant denominator without the constant, or the reverse."""
        if (self.denominator == "constant") != (self.constant_denominator is not None):
            yield (
                f"denominator = {self.denominator!r}, constant_denominator = {self.constant_denominator}: only denominator = "
                '"constant" uses a length, and it needs one; set both (rollout.sampling.max_new_tokens is the usual length), or neither'
            )


class RatioLoss(PolicyLoss):
    """One that compares the policy with that at the start of the step."""

    ratio: Level = "token"
    """What the policy ratio is of. token: each token; sequence: a completion, the product of its tokens' ratios; geometric:
    a completion, their geometric mean."""
