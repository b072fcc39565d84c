"""Composition root: wires the rooms into runs. The only room that knows all the others.

Comes in: a resolved recipe. Goes out: a run's folder with metrics, rollouts, checkpoints, an exported
model and a report. Also what the other commands do: generate, evaluate, export, audit, replay.
"""

from zerogap.run.audit import audit_step, describe_audit, write_audit_page
from zerogap.run.capsule import describe_capsule, describe_replay, make_capsule, replay_capsule
from zerogap.run.certify import Certificate, certify
from zerogap.run.evaluate_model import evaluate_model
from zerogap.run.export import export_run
from zerogap.run.free_memory import return_free_memory
from zerogap.run.generate import generate_text
from zerogap.run.numerics import Numerics, NumericsChoice, settle_numerics
from zerogap.run.policy import Policy, load_policy
from zerogap.run.report import write_report
from zerogap.run.train import TrainResult, train

__all__ = [
    "Certificate",
    "Numerics",
    "NumericsChoice",
    "Policy",
    "TrainResult",
    "audit_step",
    "certify",
    "describe_audit",
    "describe_capsule",
    "describe_replay",
    "evaluate_model",
    "export_run",
    "generate_text",
    "load_policy",
    "make_capsule",
    "replay_capsule",
    "return_free_memory",
    "settle_numerics",
    "train",
    "write_audit_page",
    "write_report",
]
