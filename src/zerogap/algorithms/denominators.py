"""The denominator of the loss, computed once per optimizer step over the whole train batch.

    token      sum over all trainable tokens / their number          DAPO, https://arxiv.org/abs/2503.14476, eq. 8
    sample     mean over a sample's tokens, then over samples        GRPO, https://arxiv.org/abs/2402.03300, eq. 3
    group      mean over a group's tokens, then over groups          DAPO's sum for one prompt, averaged over prompts
    rollout    mean over a rollout's tokens, then over rollouts      sample, where a rollout has several samples
    constant   sum over tokens / (samples x constant)                Dr. GRPO, https://arxiv.org/abs/2503.20783, eq. 3

Each is one number per sample, so ``loss = sum(terms / denominator of the term's sample)`` has the same value and
gradient for every split into micro-batches. B samples.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Int
from zerogap.errors import DataError

Denominator = Literal["token", "sample", "group", "rollout", "constant"]


def loss_denominators(
    num_loss_tokens_B: Int[np.ndarray, "B"],
    *,
    kind: Denominator,
    constant: int | None = None,
    shared_ids: Sequence[str] | None = None,
    is_counted_B: Bool[np.ndarray, "B"] | None = None,
) -> Float[np.ndarray, "B"]:
    """The denominator of each sample's loss terms, float64.

    A sample without trainable tokens adds no terms; its own denominator is infinite. If it is masked, it still counts as a
    sample, as its rollout and as its group: the terms of the others are not scaled up because it was masked. So do TRL's
    losses "grpo" and "dr_grpo" with ``mask_truncated_completions``, and as there the denominator "token" has only tokens that train.

    Args:
        num_loss_tokens_B: trainable tokens of every sample of the train batch, over all ranks.
        kind: token: their sum. sample: own tokens x samples. group, rollout: tokens of the samples with the same id
            x such ids. constant: samples x ``constant``.
        constant: one length for every sample in tokens, usually the limit for completions.
        shared_ids: each sample's group id for "group", its rollout's for "rollout".
        is_counted_B: samples of the train batch, masked ones too; default: those with trainable tokens.
    """
    has_tokens_B = num_loss_tokens_B > 0
    counted_B = has_tokens_B if is_counted_B is None else has_tokens_B | is_counted_B
    num_samples = int(counted_B.sum())
    if not has_tokens_B.any():
        msg = f"none of the {len(num_loss_tokens_B)} samples has a trainable token, so there is no loss; skip the optimizer step"
        raise DataError(msg)
    if (kind == "constant") != (constant is not None) or (constant is not None and constant < 1):
        msg = f"denominator {kind!r} was given constant = {constant}: only 'constant' takes a length, which must be positive"
        raise DataError(msg)
    if kind in ("group", "rollout"):
        denominators_B = _shared(num_loss_tokens_B, counted_B, shared_ids, kind)
    else:
        denominators_B = {
            "token": np.full(len(num_loss_tokens_B), num_loss_tokens_B.sum(), np.float64),
            "sample": num_loss_tokens_B * float(num_samples),
            "constant": np.full(len(num_loss_tokens_B), num_samples * float(constant or 1)),
        }[kind]
    return np.where(has_tokens_B, denominators_B, np.inf)


def _shared(
    num_loss_tokens_B: np.ndarray,
    counted_B: np.ndarray,
    shared_ids: Sequence[str] | None,
    kind: Denominator,
) -> np.ndarray:
    if shared_ids is None or len(shared_ids) != len(num_loss_tokens_B):
        given = "no ids" if shared_ids is None else f"{len(shared_ids)} ids"
        msg = f"denominator {kind!r} was given {given} for {len(num_loss_tokens_B)} samples: it needs the {kind} id of each in shared_ids"
        raise DataError(msg)
    num_tokens_of: Counter[str] = Counter()
    for shared_id, num_tokens in zip(shared_ids, num_loss_tokens_B.tolist(), strict=True):
        num_tokens_of[shared_id] += num_tokens
    num_shares = len({i for i, is_counted in zip(shared_ids, counted_B, strict=True) if is_counted})
    return np.array([num_tokens_of[i] * float(num_shares) for i in shared_ids])
