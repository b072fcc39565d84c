"""The mathematics of a step: advantages, losses, corrections, KL estimators, denominators, the ledger.

Columns in, columns and scalars out; no models, no engine, and only the config sections of ``correct_mismatch``. What is
computed over a whole train batch is numpy in float64; what needs a gradient is torch, in the dtype of its input. Masked
slots may hold anything, even NaN: they reach neither a value nor a gradient. docs/algorithms.md describes each loss,
correction and denominator.
"""

from zerogap.algorithms.advantages import (
    GroupAdvantages,
    group_advantages,
    leave_one_out_advantages,
)
from zerogap.algorithms.correction_statistics import CorrectionStatistics, WeightStatistics
from zerogap.algorithms.corrections import Corrections, correct_mismatch
from zerogap.algorithms.denominators import Denominator, loss_denominators
from zerogap.algorithms.distillation import KLDirection, distillation_advantages, top_k_kl
from zerogap.algorithms.dpo import DPOTerms, dpo_coefficients
from zerogap.algorithms.kl import KLKind, kl_estimate, kl_penalties
from zerogap.algorithms.ledger import (
    REPLAYED,
    Attribution,
    LedgerStatistics,
    SourceStatistics,
    Stages,
    attribute,
    choose_samples,
    ledger_statistics,
)
from zerogap.algorithms.losses import reduce_loss
from zerogap.algorithms.mismatch import GapStatistics, gap_statistics
from zerogap.algorithms.off_policy import off_policy_keep
from zerogap.algorithms.per_sample import sample_sums
from zerogap.algorithms.policy_statistics import PolicyStatistics, policy_statistics
from zerogap.algorithms.reward_parts import (
    RewardNormalization,
    batch_normalized,
    combined_rewards,
)
from zerogap.algorithms.shaping import overlong_penalties
from zerogap.algorithms.surrogates import (
    Surrogate,
    cispo_surrogate,
    clipped_surrogate,
    gspo_surrogate,
    reinforce_surrogate,
    sft_surrogate,
    weighted_log_probs,
)
from zerogap.algorithms.token_advantages import (
    ValueTargets,
    gae_advantages,
    normalized_over_tokens,
    reinforce_pp_advantages,
    returns_to_go,
    token_rewards,
)
from zerogap.algorithms.values import value_surrogate

__all__ = [
    "REPLAYED",
    "Attribution",
    "CorrectionStatistics",
    "Corrections",
    "DPOTerms",
    "Denominator",
    "GapStatistics",
    "GroupAdvantages",
    "KLDirection",
    "KLKind",
    "LedgerStatistics",
    "PolicyStatistics",
    "RewardNormalization",
    "SourceStatistics",
    "Stages",
    "Surrogate",
    "ValueTargets",
    "WeightStatistics",
    "attribute",
    "batch_normalized",
    "choose_samples",
    "cispo_surrogate",
    "clipped_surrogate",
    "combined_rewards",
    "correct_mismatch",
    "distillation_advantages",
    "dpo_coefficients",
    "gae_advantages",
    "gap_statistics",
    "group_advantages",
    "gspo_surrogate",
    "kl_estimate",
    "kl_penalties",
    "leave_one_out_advantages",
    "ledger_statistics",
    "loss_denominators",
    "normalized_over_tokens",
    "off_policy_keep",
    "overlong_penalties",
    "policy_statistics",
    "reduce_loss",
    "reinforce_pp_advantages",
    "reinforce_surrogate",
    "returns_to_go",
    "sample_sums",
    "sft_surrogate",
    "token_rewards",
    "top_k_kl",
    "value_surrogate",
    "weighted_log_probs",
]
