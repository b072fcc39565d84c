"""Composition root: wires the rooms into runs.

Comes in: a resolved recipe. Goes out: a run's folder with metrics, rollouts, checkpoints, an exported
model and a report. Also generates, evaluates and exports.
"""

from zerogap.run.evaluate import evaluate_model
from zerogap.run.export import export_run
from zerogap.run.generate import generate_text
from zerogap.run.machine import return_free_memory
from zerogap.run.numerics import Numerics, NumericsChoice, settle_numerics
from zerogap.run.policy import Policy, load_policy
from zerogap.run.train import TrainResult, train

__all__ = [
    "Numerics",
    "NumericsChoice",
    "Policy",
    "TrainResult",
    "evaluate_model",
    "export_run",
    "generate_text",
    "load_policy",
    "return_free_memory",
    "settle_numerics",
    "train",
]
