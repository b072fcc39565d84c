"""What a recipe makes of a model: its trainer, and what that may take for granted. For the run, and for whoever computes its steps again."""

from zerogap.config import RunConfig
from zerogap.models import CausalLM
from zerogap.run.policy import load_policy
from zerogap.train import Trainer


def build_trainer(config: RunConfig, model: CausalLM, *, vocab_limit: int) -> Trainer:
    """The recipe's trainer of ``model`` at step 0, with whatever frozen models its loss needs."""
    reference = None
    if config.loss.needs_reference:
        reference = load_policy(config.model, seed=config.run.seed).model
    return Trainer(
        model,
        config.train,
        config.loss,
        total_steps=config.run.steps,
        vocab_limit=vocab_limit,
        reference=reference,
    )


def exact_version(config: RunConfig, weight_version: int) -> int | None:
    """``weight_version``, if samples of it carry the trainer's own log-probs to the bit; None where nobody promises it."""
    edits_logits = config.rollout.sampling.params().edits_logits
    return weight_version if config.numerics == "exact" and not edits_logits else None
