"""Pure mathematics of a GRPO step: advantages, policy losses, KL estimators, denominators, gap statistics.

Columns in, columns and scalars out; nothing here knows a model, a config or an engine. Advantages,
denominators and statistics are numpy in float64; what needs a gradient is torch, in the dtype it is given.
Masked slots may hold anything, NaN included: they reach neither a value nor a gradient.
"""

from zerogap.algorithms.advantages import GroupAdvantages, group_advantages
from zerogap.algorithms.denominators import Denominator, loss_denominators
from zerogap.algorithms.exclusion import Exclusion, exclusion_reason
from zerogap.algorithms.kl import KLKind, kl_estimate
from zerogap.algorithms.losses import ClippedSurrogate, clipped_surrogate, reduce_loss
from zerogap.algorithms.mismatch import GapStatistics, gap_statistics
from zerogap.algorithms.policy_statistics import PolicyStatistics, policy_statistics

__all__ = [
    "ClippedSurrogate",
    "Denominator",
    "Exclusion",
    "GapStatistics",
    "GroupAdvantages",
    "KLKind",
    "PolicyStatistics",
    "clipped_surrogate",
    "exclusion_reason",
    "gap_statistics",
    "group_advantages",
    "kl_estimate",
    "loss_denominators",
    "policy_statistics",
    "reduce_loss",
]
