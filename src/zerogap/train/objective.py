"""The loss of one micro-batch, from its log-probs and what the step knows. R targets."""

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import Surrogate, clipped_surrogate, kl_estimate, reduce_loss
from zerogap.config.loss import DAPOLossConfig, DrGRPOLossConfig, GRPOLossConfig, LossConfig
from zerogap.errors import ConfigError
from zerogap.train.packing import MicroBatch
from zerogap.train.step_state import StepState


def samples_with_signal(step: StepState, config: LossConfig) -> np.ndarray:
    """Bool [B]: samples whose loss may have a gradient; that of the others is exactly 0."""
    if config.needs_reference:
        return step.who.is_kept_B
    is_nonzero_S = step.trains_S & (step.advantages.column_S != 0)
    return np.array([bool(nonzero.any()) for nonzero in step.index.split(is_nonzero_S)])


def micro_batch_loss(
    log_probs_R: Tensor,
    step: StepState,
    batch: MicroBatch,
    denominator_R: Tensor,
    config: LossConfig,
) -> Tensor:
    """This micro-batch's share of the update's loss, float64 with gradient.

    Writes clip flags and KL estimates into the step's columns; reads old and reference log-probs there.
    Arithmetic is in float64: it costs nothing beside the forward pass, and what remains of a layout's rounding is
    the kernels'.
    """
    slots_R = step.index.slots(batch)
    log_probs_R = log_probs_R.double()
    # Every target is a loss token: packing left the masked ones out.
    keep_R = torch.ones(len(slots_R), dtype=torch.bool)

    def name_token(target: int) -> str:
        return step.index.name(int(slots_R[target]))

    match config:
        case GRPOLossConfig() | DrGRPOLossConfig() | DAPOLossConfig():
            surrogate: Surrogate = clipped_surrogate(
                log_probs_R,
                torch.from_numpy(step.old_log_probs_S[slots_R]).double(),
                torch.from_numpy(step.advantages.column_S[slots_R]),
                keep_R,
                clip_low=config.clip_low,
                clip_high=config.clip_high,
                dual_clip=config.dual_clip,
                name_token=name_token,
            )
        case _:
            msg = f"loss.kind = {config.kind!r}: the trainer cannot compute it yet; set grpo, dr_grpo or dapo"
            raise ConfigError(msg)
    step.is_clipped_S[slots_R] = surrogate.is_clipped_T.numpy()
    numerator_R = surrogate.numerator_T
    if config.kl.kind != "none":
        kl_R = kl_estimate(
            log_probs_R,
            torch.from_numpy(step.ref_log_probs_S[slots_R]).double(),
            keep_R,
            kind=config.kl.kind,
            name_token=name_token,
        )
        step.kl_S[slots_R] = kl_R.detach().numpy()
        numerator_R = numerator_R + config.kl.coefficient * kl_R
    return reduce_loss(numerator_R, denominator_R, keep_R)
