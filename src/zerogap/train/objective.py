"""The loss of one micro-batch, from its log-probs and what the step knows. R targets."""

import torch
from torch import Tensor

from zerogap.algorithms import clipped_surrogate, kl_estimate, reduce_loss
from zerogap.config.loss import LossConfig
from zerogap.train.packing import MicroBatch
from zerogap.train.step_state import StepState


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
        return step.index.name(batch, target)

    surrogate = clipped_surrogate(
        log_probs_R,
        torch.from_numpy(step.old_log_probs_S[slots_R]).double(),
        torch.from_numpy(step.advantage_B[batch.sample_R]),
        keep_R,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=config.dual_clip,
        name_token=name_token,
    )
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
