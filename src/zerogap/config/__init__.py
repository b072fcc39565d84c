"""What a user may set: sections that check themselves, the TOML loader, and the environment.

In come recipe files, flags and environment variables; out come frozen sections, or one ConfigError that
lists every problem. Nothing here is adjusted, guessed or ignored, and nothing here imports torch.
"""

from zerogap.config.data import (
    BuiltinData,
    DataConfig,
    JsonlData,
    ParquetData,
    ReasoningGymData,
)
from zerogap.config.engine import EngineConfig
from zerogap.config.evaluate import EvaluateConfig
from zerogap.config.loss import GRPOLossConfig, KLConfig, LossConfig
from zerogap.config.model import ModelInit, ModelSection
from zerogap.config.obs import ObsConfig
from zerogap.config.prompt import PromptConfig
from zerogap.config.reward import (
    ExactReward,
    ImportReward,
    LastNumberReward,
    MathVerifyReward,
    RegexReward,
    RewardConfig,
    TaskReward,
)
from zerogap.config.rollout import RolloutConfig
from zerogap.config.run import RunConfig, RunSection
from zerogap.config.sampling import SamplingConfig
from zerogap.config.train import TrainConfig

__all__ = [
    "BuiltinData",
    "DataConfig",
    "EngineConfig",
    "EvaluateConfig",
    "ExactReward",
    "GRPOLossConfig",
    "ImportReward",
    "JsonlData",
    "KLConfig",
    "LastNumberReward",
    "LossConfig",
    "MathVerifyReward",
    "ModelInit",
    "ModelSection",
    "ObsConfig",
    "ParquetData",
    "PromptConfig",
    "ReasoningGymData",
    "RegexReward",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "RunSection",
    "SamplingConfig",
    "TaskReward",
    "TrainConfig",
]
