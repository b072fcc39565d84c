"""From samples to new weights: packing, forward and backward over micro-batches, AdamW.

In: scored samples. Out: the model's weights changed in place, and what the step measured,
the gap to the engine included. How samples are packed, split and shared changes speed and memory, never the
gradient. It never samples and never scores a reward.
"""

from zerogap.train.metrics import (
    CriticMetrics,
    OldLogProbAudit,
    PreferenceMetrics,
    StepGradient,
    TrainMetrics,
    TrainProgress,
)
from zerogap.train.packing import MicroBatch, pack
from zerogap.train.scoring import score_samples
from zerogap.train.teacher import Teacher
from zerogap.train.trainer import Trainer

__all__ = [
    "CriticMetrics",
    "MicroBatch",
    "OldLogProbAudit",
    "PreferenceMetrics",
    "StepGradient",
    "Teacher",
    "TrainMetrics",
    "TrainProgress",
    "Trainer",
    "pack",
    "score_samples",
]
