"""The mathematics of a step: advantages, losses, corrections, KL estimators, denominators, the ledger.

Columns in, columns and scalars out; no models, no engine. Losses and advantages are sections of a recipe with a method: one
class a kind, one file each. What is computed over a whole train batch is numpy in float64; what needs a gradient is torch,
through methods of its tensors, so that recipes load without torch. Masked slots may hold anything, even NaN: they reach
neither a value nor a gradient. docs/algorithms.md describes each loss, advantage, correction and denominator.
"""

from zerogap.algorithms.acceptance import Acceptance, AcceptanceConfig, inference_gain
from zerogap.algorithms.advantages import (
    ADVANTAGES,
    AdvantageConfig,
    AdvantageInputs,
    Advantages,
    AnyAdvantage,
    CriticAdvantage,
    GroupAdvantage,
    ImportedAdvantage,
    LeaveOneOutAdvantage,
    MaxRLAdvantage,
    NoAdvantage,
    ReturnAdvantage,
    TokenBaselineAdvantage,
)
from zerogap.algorithms.algorithm import (
    Algorithm,
    EntropyConfig,
    algorithm_problems,
)
from zerogap.algorithms.correction_statistics import CorrectionStatistics, WeightStatistics
from zerogap.algorithms.corrections import (
    Corrections,
    CorrectionsConfig,
    MaskCorrection,
    WeightCorrection,
    correct_mismatch,
)
from zerogap.algorithms.denominators import Denominator, loss_denominators
from zerogap.algorithms.distillation import KLDirection, distillation_advantages, top_k_kl
from zerogap.algorithms.dpo import DPOTerms, dpo_coefficients
from zerogap.algorithms.group_statistics import GroupAdvantages, group_advantages
from zerogap.algorithms.kl import KLConfig, KLKind, kl_estimate, kl_loss, kl_penalties
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
from zerogap.algorithms.losses import (
    LOSSES,
    CISPOLoss,
    ClipLoss,
    DPOLoss,
    DPPOLoss,
    DRPOLoss,
    ImportedLoss,
    Loss,
    LossConfig,
    PolicyLoss,
    RatioLoss,
    ReinforceLoss,
    SAPOLoss,
    SFTLoss,
)
from zerogap.algorithms.mismatch import GapStatistics, gap_statistics
from zerogap.algorithms.off_policy import off_policy_keep
from zerogap.algorithms.per_sample import sample_sums
from zerogap.algorithms.policy_statistics import PolicyStatistics, policy_statistics
from zerogap.algorithms.presets import presets
from zerogap.algorithms.reduce import reduce_loss
from zerogap.algorithms.refresh import Refresh
from zerogap.algorithms.returns import (
    gae_advantages,
    normalized_over_tokens,
    optimal_token_baselines,
    returns_to_go,
    token_rewards,
)
from zerogap.algorithms.reward_parts import (
    RewardNormalization,
    combined_rewards,
)
from zerogap.algorithms.shaping import overlong_penalties
from zerogap.algorithms.teacher import HintConfig, TeacherConfig
from zerogap.algorithms.terms import Level, LossTerms, Surrogate, policy_ratio
from zerogap.algorithms.user_function import call_user_function, check_user_functions, module_file
from zerogap.algorithms.values import value_surrogate

__all__ = [
    "ADVANTAGES",
    "LOSSES",
    "REPLAYED",
    "Acceptance",
    "AcceptanceConfig",
    "AdvantageConfig",
    "AdvantageInputs",
    "Advantages",
    "Algorithm",
    "AnyAdvantage",
    "Attribution",
    "CISPOLoss",
    "ClipLoss",
    "CorrectionStatistics",
    "Corrections",
    "CorrectionsConfig",
    "CriticAdvantage",
    "DPOLoss",
    "DPOTerms",
    "DPPOLoss",
    "DRPOLoss",
    "Denominator",
    "EntropyConfig",
    "GapStatistics",
    "GroupAdvantage",
    "GroupAdvantages",
    "HintConfig",
    "ImportedAdvantage",
    "ImportedLoss",
    "KLConfig",
    "KLDirection",
    "KLKind",
    "LeaveOneOutAdvantage",
    "LedgerStatistics",
    "Level",
    "Loss",
    "LossConfig",
    "LossTerms",
    "MaskCorrection",
    "MaxRLAdvantage",
    "NoAdvantage",
    "PolicyLoss",
    "PolicyStatistics",
    "RatioLoss",
    "Refresh",
    "ReinforceLoss",
    "ReturnAdvantage",
    "RewardNormalization",
    "SAPOLoss",
    "SFTLoss",
    "SourceStatistics",
    "Stages",
    "Surrogate",
    "TeacherConfig",
    "TokenBaselineAdvantage",
    "WeightCorrection",
    "WeightStatistics",
    "algorithm_problems",
    "attribute",
    "call_user_function",
    "check_user_functions",
    "choose_samples",
    "combined_rewards",
    "correct_mismatch",
    "distillation_advantages",
    "dpo_coefficients",
    "gae_advantages",
    "gap_statistics",
    "group_advantages",
    "inference_gain",
    "kl_estimate",
    "kl_loss",
    "kl_penalties",
    "ledger_statistics",
    "loss_denominators",
    "module_file",
    "normalized_over_tokens",
    "off_policy_keep",
    "optimal_token_baselines",
    "overlong_penalties",
    "policy_ratio",
    "policy_statistics",
    "presets",
    "reduce_loss",
    "returns_to_go",
    "sample_sums",
    "token_rewards",
    "top_k_kl",
    "value_surrogate",
]
