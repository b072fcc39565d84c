"""The advantages, one class a kind. A new one is a file here and an entry in ``ADVANTAGES``."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zerogap.algorithms.advantages.base import AdvantageConfig, AdvantageInputs, Advantages
from zerogap.algorithms.advantages.critic import CriticAdvantage
from zerogap.algorithms.advantages.group import (
    GroupAdvantage,
    LeaveOneOutAdvantage,
    MaxRLAdvantage,
)
from zerogap.algorithms.advantages.plain import ImportedAdvantage, NoAdvantage
from zerogap.algorithms.advantages.returns import ReturnAdvantage
from zerogap.algorithms.advantages.token_baseline import TokenBaselineAdvantage

ADVANTAGES: dict[str, type[AdvantageConfig]] = {
    "group": GroupAdvantage,
    "leave_one_out": LeaveOneOutAdvantage,
    "maxrl": MaxRLAdvantage,
    "return": ReturnAdvantage,
    "token_baseline": TokenBaselineAdvantage,
    "critic": CriticAdvantage,
    "none": NoAdvantage,
    "import": ImportedAdvantage,
}
"""``advantage.kind`` -> its class."""

if TYPE_CHECKING:
    AnyAdvantage = AdvantageConfig
else:
    AnyAdvantage = Annotated[reduce(or_, ADVANTAGES.values()), Field(discriminator="kind")]

__all__ = [
    "ADVANTAGES",
    "AdvantageConfig",
    "AdvantageInputs",
    "Advantages",
    "AnyAdvantage",
    "CriticAdvantage",
    "GroupAdvantage",
    "ImportedAdvantage",
    "LeaveOneOutAdvantage",
    "MaxRLAdvantage",
    "NoAdvantage",
    "ReturnAdvantage",
    "TokenBaselineAdvantage",
]
