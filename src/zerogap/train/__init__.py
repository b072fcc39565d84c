"""From samples to new weights: packing, forward and backward over micro-batches, AdamW.

In: samples with rewards. Out: a plan of the step, which does not depend on the number of processes; then the model's
weights, updated in place, and the step's metrics, including the gap to the engine. How samples are packed, split and
shared changes speed and memory, never the gradient. This room never samples and never computes a reward.
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
