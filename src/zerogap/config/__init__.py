"""The settings of a run: validated sections, the TOML loader, and the environment.

In: recipe files, flags and environment variables. Out: frozen sections, or one ConfigError that lists every problem.
Nothing is adjusted, guessed or ignored, and nothing here imports torch.
"""

from zerogap.config.data import (
    BuiltinData,
    DataConfig,
    FileData,
    PromptConfig,
    ReasoningGymData,
)
from zerogap.config.engine import EngineConfig
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
from zerogap.config.sampling_policy import (
    DynamicSamplingConfig,
    OverlongConfig,
    SamplingPolicyConfig,
)
from zerogap.config.train import TrainConfig

__all__ = [
    "BuiltinData",
    "DataConfig",
    "DynamicSamplingConfig",
    "EngineConfig",
    "EvaluateConfig",
    "ExactReward",
    "FileData",
    "ImportReward",
    "LastNumberReward",
    "LedgerConfig",
    "MathVerifyReward",
    "MismatchConfig",
    "ModelInit",
    "ModelSection",
    "ObsConfig",
    "OverlongConfig",
    "PromptConfig",
    "ReasoningGymData",
    "RegexReward",
    "RewardConfig",
    "RewardPart",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "SamplingConfig",
    "SamplingPolicyConfig",
    "SingleReward",
    "TaskReward",
    "TrainConfig",
    "WatchConfig",
    "WeightedSumReward",
    "reward_parts",
    "single_rewards",
]
