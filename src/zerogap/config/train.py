"""[train]: the optimizer and how a step's samples are cut into micro-batches."""

from typing import Annotated, Literal

from pydantic import Field

from zerogap.config.section import Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Section):
    """AdamW on all weights that train. How samples are packed and split changes speed and memory, never the gradient."""

    learning_rate: float = Field(1e-6, ge=0)
    """Peak learning rate; 0 leaves the weights as they are."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up; linear and cosine fall towards 0, which the step after the last would have."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly from 0."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled decay of matrices; norms and biases have none."""
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = (0.9, 0.999)
    """AdamW's averaging of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's floor under the root of the second moment."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients of larger norm are scaled down to it."""
    updates_per_step: int = Field(1, ge=1)
    """Optimizer updates from one step's samples; their prompts are split evenly."""
    old_log_probs: Literal["trainer", "rollout"] = "trainer"
    """What the policy ratio is taken against: the trainer's log-probs at the start of the step, or the engine's ("bypass")."""
    audit_share: float = Field(0.05, gt=0, le=1)
    """With exact numerics, updates after a step's first take the engine's log-probs as the old ones. This share of their
    groups (one at least) is scored by the trainer too; a single difference, and all are. 1 scores all."""
    micro_batch_tokens: int = Field(1024, ge=1)
    """Most token rows in one forward and backward pass; a longer sample gets one of its own."""
    recompute: bool = False
    """Compute each layer's activations again in the backward pass: less memory, about a third more time."""
    share_prompts: bool = True
    """Compute what samples of a group have in common (the prompt, earlier turns) once a micro-batch instead of once a sample."""
