"""The settings of a run: validated sections, the TOML loader, and the environment.

In: recipe files, flags and environment variables. Out: frozen sections, or one ConfigError that lists every problem.
Nothing is adjusted, guessed or ignored, and nothing here imports torch.
"""

from zerogap.config.corrections import (
    CorrectionsConfig,
    MaskCorrection,
    WeightCorrection,
)
from zerogap.config.data import (
    BuiltinData,
    DataConfig,
    FileData,
    PromptConfig,
    ReasoningGymData,
)
from zerogap.config.engine import EngineConfig
from zerogap.config.loss import (
    CISPOLossConfig,
    DAPOLossConfig,
    DistillationLossConfig,
    DPOLossConfig,
    DrGRPOLossConfig,
    GRPOLossConfig,
    GSPOLossConfig,
    KLConfig,
    LossConfig,
    PPOLossConfig,
    ReinforcePlusPlusLossConfig,
    RLOOLossConfig,
    SFTLossConfig,
)
from zerogap.config.model import ModelInit, ModelSection
from zerogap.config.monitoring import LedgerConfig, MismatchConfig, ObsConfig, WatchConfig
from zerogap.config.reward import (
    ExactReward,
    ImportReward,
    LastNumberReward,
    MathVerifyReward,
    RegexReward,
    RewardConfig,
    RewardPart,
    SingleReward,
    TaskReward,
    WeightedSumReward,
    reward_parts,
    single_rewards,
)
from zerogap.config.rollout import EvaluateConfig, RolloutConfig, SamplingConfig
from zerogap.config.run import RunConfig, RunSection
from zerogap.config.train import TrainConfig

__all__ = [
    "BuiltinData",
    "CISPOLossConfig",
    "CorrectionsConfig",
    "DAPOLossConfig",
    "DPOLossConfig",
    "DataConfig",
    "DistillationLossConfig",
    "DrGRPOLossConfig",
    "EngineConfig",
    "EvaluateConfig",
    "ExactReward",
    "FileData",
    "GRPOLossConfig",
    "GSPOLossConfig",
    "ImportReward",
    "KLConfig",
    "LastNumberReward",
    "LedgerConfig",
    "LossConfig",
    "MaskCorrection",
    "MathVerifyReward",
    "MismatchConfig",
    "ModelInit",
    "ModelSection",
    "ObsConfig",
    "PPOLossConfig",
    "PromptConfig",
    "RLOOLossConfig",
    "ReasoningGymData",
    "RegexReward",
    "ReinforcePlusPlusLossConfig",
    "RewardConfig",
    "RewardPart",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "SFTLossConfig",
    "SamplingConfig",
    "SingleReward",
    "TaskReward",
    "TrainConfig",
    "WatchConfig",
    "WeightCorrection",
    "WeightedSumReward",
    "reward_parts",
    "single_rewards",
]
