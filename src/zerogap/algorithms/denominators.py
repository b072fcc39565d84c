"""What the loss is divided by, decided once an optimizer step over the whole train batch.

    token      sum over all trainable tokens / their number          DAPO, https://arxiv.org/abs/2503.14476, eq. 8
    record     mean over a record's tokens, then over records        GRPO, https://arxiv.org/abs/2402.03300, eq. 3
    group      mean over a group's tokens, then over groups          DAPO's sum for one prompt, averaged over prompts
    rollout    mean over a rollout's tokens, then over rollouts      record, where a rollout has several records
    constant   sum over tokens / (records x constant)                Dr. GRPO, https://arxiv.org/abs/2503.20783, eq. 3

All are one number a record, so that ``loss = sum(terms / denominator of the term's record)`` has the
same value and gradient however the records are split into micro-batches. B records.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from zerogap.algorithms._shapes import Float, Int
from zerogap.errors import DataError

Denominator = Literal["token", "record", "group", "rollout", "constant"]


def loss_denominators(
    num_loss_tokens_B: Int[np.ndarray, "B"],
    *,
    kind: Denominator,
    constant: int | None = None,
    shared_ids: Sequence[str] | None = None,
) -> Float[np.ndarray, "B"]:
    """The number each record's loss terms are divided by, float64.

    A record without trainable tokens counts in none of them; its own denominator is infinite.

    Args:
        num_loss_tokens_B: trainable tokens of every record of the train batch, over all ranks.
        kind: token: their sum. record: own tokens x records. group, rollout: tokens of the records with the same id
            x such ids. constant: records x ``constant``.
        constant: the same length for every record, usually the longest completion allowed, in tokens.
        shared_ids: each record's group id for "group", its rollout's for "rollout".
    """
    has_tokens_B = num_loss_tokens_B > 0
    num_records = int(has_tokens_B.sum())
    if num_records == 0:
        msg = f"none of the {len(num_loss_tokens_B)} records has a trainable token: there is no loss to divide; leave the optimizer step out"
        raise DataError(msg)
    if (kind == "constant") != (constant is not None) or (constant is not None and constant < 1):
        msg = f"denominator {kind!r} was given constant = {constant}: 'constant' needs a positive length in tokens, the others take none"
        raise DataError(msg)
    if kind in ("group", "rollout"):
        denominators_B = _shared(num_loss_tokens_B, shared_ids, kind)
    else:
        denominators_B = {
            "token": np.full(len(num_loss_tokens_B), num_loss_tokens_B.sum(), np.float64),
            "record": num_loss_tokens_B * float(num_records),
            "constant": np.full(len(num_loss_tokens_B), num_records * float(constant or 1)),
        }[kind]
    return np.where(has_tokens_B, denominators_B, np.inf)


def _shared(
    num_loss_tokens_B: np.ndarray, shared_ids: Sequence[str] | None, kind: Denominator
) -> np.ndarray:
    if shared_ids is None or len(shared_ids) != len(num_loss_tokens_B):
        given = "no ids" if shared_ids is None else f"{len(shared_ids)} ids"
        msg = f"denominator {kind!r} was given {given} for {len(num_loss_tokens_B)} records: it needs the {kind} id of each in shared_ids"
        raise DataError(msg)
    num_tokens_of: Counter[str] = Counter()
    for shared_id, num_tokens in zip(shared_ids, num_loss_tokens_B.tolist(), strict=True):
        num_tokens_of[shared_id] += num_tokens
    num_shares = sum(num_tokens > 0 for num_tokens in num_tokens_of.values())
    return np.array([num_tokens_of[i] * float(num_shares) for i in shared_ids])
