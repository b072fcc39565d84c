"""[train]: the optimizer, and how samples are split into micro-batches."""

from typing import Annotated, Literal

from pydantic import Field

from zerogap.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Section):
    """AdamW on all weights that train. Packing and micro-batches change speed and memory, never the gradient."""

    learning_rate: float = Field(1e-6, ge=0)
    """Peak learning rate; 0 does not change the weights."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; linear and cosine would reach 0 one step after the last."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of matrices; norms and biases do not decay."""
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.999)
    """AdamW's decay rates for the mean of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon, added to the root of the second moment."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Clip the gradient norm to this."""
    updates_per_step: int = Field(1, ge=1)
    """Optimizer updates per step; the step's prompts are split evenly among them."""
    epochs: int = Field(1, ge=1)
    """Passes over the step's samples, each with updates_per_step updates. Old log-probs, advantages and corrections stay those
    of the start of the step."""
    old_log_probs: Literal["trainer", "rollout"] = "trainer"
    """Denominator of the policy ratio: the trainer's log-probs at the start of the step, or the engine's ("bypass")."""
    audit_share: float = Field(0.05, gt=0, le=1)
    """With exact numerics, later updates of a step use the engine's log-probs as old log-probs. The trainer checks this
    share of their groups, at least one; after any difference it scores all. 1 checks all."""
    micro_batch_tokens: int = Field(1024, ge=1)
    """At most this many token rows in one forward and backward pass; a longer sample gets a pass of its own."""
    recompute: bool = False
    """Activation checkpointing: recompute activations in the backward pass; less memory, about a third more time."""
    share_prompts: bool = True
    """Compute shared prefixes of a group (prompt, earlier turns) once per micro-batch instead of once per sample."""
