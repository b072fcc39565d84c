"""From samples to new weights: packing, forward and backward over micro-batches, AdamW.

In: scored samples. Out: a plan of the step, which knows no processes; then the model's weights changed in place, and what
the step measured, the gap to the engine included. How samples are packed, split and shared changes speed and memory,
never the gradient. It never samples and never scores a reward.
"""

from zerogap.train.metrics import (
    CriticMetrics,
    OldLogProbAudit,
    PreferenceMetrics,
    StepGradient,
    TrainMetrics,
    TrainProgress,
)
from zerogap.train.native_trainer import NativeTrainer
from zerogap.train.packing import MicroBatch, pack
from zerogap.train.plan import StepPlan
from zerogap.train.planning import plan_step
from zerogap.train.scoring import score_samples
from zerogap.train.teacher import Teacher
from zerogap.train.trainer import Trainer

__all__ = [
    "CriticMetrics",
    "MicroBatch",
    "NativeTrainer",
    "OldLogProbAudit",
    "PreferenceMetrics",
    "StepGradient",
    "StepPlan",
    "Teacher",
    "TrainMetrics",
    "TrainProgress",
    "Trainer",
    "pack",
    "plan_step",
    "score_samples",
]
