"""What the loss is divided by, decided once an optimizer step over the whole train batch.

    token      sum over all trainable tokens / their number          DAPO, https://arxiv.org/abs/2503.14476, eq. 8
    record     mean over a record's tokens, then over records        GRPO, https://arxiv.org/abs/2402.03300, eq. 3
    constant   sum over tokens / (records x constant)                Dr. GRPO, https://arxiv.org/abs/2503.20783, eq. 3

All three are one number a record, so that ``loss = sum(terms / denominator of the term's record)`` has the
same value and gradient however the records are split into micro-batches. B records.
"""

from typing import Literal

import numpy as np

from zerogap.algorithms._shapes import Float, Int
from zerogap.errors import DataError

Denominator = Literal["token", "record", "constant"]


def loss_denominators(
    num_loss_tokens_B: Int[np.ndarray, "B"],
    *,
    kind: Denominator,
    constant: int | None = None,
) -> Float[np.ndarray, "B"]:
    """The number each record's loss terms are divided by, float64.

    A record without trainable tokens counts in none of them; its own denominator is infinite.

    Args:
        num_loss_tokens_B: trainable tokens of every record of the train batch, over all ranks.
        kind: token: their sum. record: own tokens x records. constant: records x ``constant``.
        constant: the same length for every record, usually the longest completion allowed, in tokens.
    """
    has_tokens_B = num_loss_tokens_B > 0
    num_records = int(has_tokens_B.sum())
    if num_records == 0:
        msg = f"none of the {len(num_loss_tokens_B)} records has a trainable token: there is no loss to divide; leave the optimizer step out"
        raise DataError(msg)
    if (kind == "constant") != (constant is not None) or (constant is not None and constant < 1):
        msg = f"denominator {kind!r} was given constant = {constant}: 'constant' needs a positive length in tokens, the others take none"
        raise DataError(msg)
    denominators_B = {
        "token": np.full(len(num_loss_tokens_B), num_loss_tokens_B.sum(), np.float64),
        "record": num_loss_tokens_B * float(num_records),
        "constant": np.full(len(num_loss_tokens_B), num_records * float(constant or 1)),
    }[kind]
    return np.where(has_tokens_B, denominators_B, np.inf)
