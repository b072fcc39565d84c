"""Columns of a small train batch for losses, and sums over it in any split and order of its records."""

import numpy as np
import torch

from zerogap.algorithms import loss_denominators, reduce_loss


class LossBatch:
    """Records of 1-11 tokens; masked slots hold NaN in every column."""

    def __init__(self, seed: int = 0, num_records: int = 7, scale: float = 0.3) -> None:
        rng = np.random.default_rng(seed)
        self.record = np.repeat(np.arange(num_records), rng.integers(1, 12, size=num_records))
        self.mask = rng.random(len(self.record)) < 0.8
        self.mask[np.unique(self.record, return_index=True)[1]] = True
        self.len = np.bincount(self.record, weights=self.mask).astype(int)
        old = -rng.exponential(size=len(self.record))
        self.columns = {
            "log_probs": old + rng.normal(scale=scale, size=len(old)),
            "old_log_probs": old,
            "advantages": rng.normal(size=num_records)[self.record],
        }
        for column in self.columns.values():
            column[~self.mask] = np.nan

    def denominators(self, kind: str = "token") -> np.ndarray:
        """One a record."""
        return loss_denominators(self.len, kind=kind)

    def loss_and_gradient(self, terms_of, *, kind="token", parts=None):
        """The loss, and its gradient to every log-prob, summed over ``parts`` (lists of records, in their order).

        ``terms_of(columns, tokens)`` gives the numerators of a part; its columns are tensors.
        """
        denominator = self.denominators(kind)
        loss, gradient = 0.0, np.zeros(len(self.record))
        for part in parts or [range(len(self.len))]:
            tokens = np.concatenate([np.flatnonzero(self.record == r) for r in part])
            columns = {name: torch.tensor(c[tokens]) for name, c in self.columns.items()}
            log_probs_T = columns["log_probs"].requires_grad_()
            columns["loss_mask"] = torch.tensor(self.mask[tokens])
            columns["record"] = torch.tensor(self.record[tokens])
            columns["record_len"] = torch.tensor(self.len[self.record[tokens]])
            total = reduce_loss(
                terms_of(columns),
                torch.tensor(denominator[self.record[tokens]]),
                columns["loss_mask"],
            )
            total.backward()
            loss += total.item()
            gradient[tokens] += log_probs_T.grad.numpy()
        return loss, gradient
