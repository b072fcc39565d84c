"""The losses, one class a kind. A new one is a file here and an entry in ``LOSSES``."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from zerogap.algorithms.losses.base import Loss, PolicyLoss, RatioLoss
from zerogap.algorithms.losses.cispo import CISPOLoss
from zerogap.algorithms.losses.clip import ClipLoss
from zerogap.algorithms.losses.dppo import DPPOLoss, DRPOLoss
from zerogap.algorithms.losses.imported import ImportedLoss
from zerogap.algorithms.losses.reinforce import ReinforceLoss
from zerogap.algorithms.losses.sapo import SAPOLoss
from zerogap.algorithms.losses.supervised import DPOLoss, SFTLoss

LOSSES: dict[str, type[Loss]] = {
    "clip": ClipLoss,
    "cispo": CISPOLoss,
    "reinforce": ReinforceLoss,
    "sapo": SAPOLoss,
    "dppo": DPPOLoss,
    "drpo": DRPOLoss,
    "import": ImportedLoss,
    "sft": SFTLoss,
    "dpo": DPOLoss,
}
"""``loss.kind`` -> its class."""

if TYPE_CHECKING:
    LossConfig = Loss
else:
    LossConfig = Annotated[reduce(or_, LOSSES.values()), Field(discriminator="kind")]

__all__ = [
    "LOSSES",
    "CISPOLoss",
    "ClipLoss",
    "DPOLoss",
    "DPPOLoss",
    "DRPOLoss",
    "ImportedLoss",
    "Loss",
    "LossConfig",
    "PolicyLoss",
    "RatioLoss",
    "ReinforceLoss",
    "SAPOLoss",
    "SFTLoss",
]
