"""Columns of a small train batch for losses, and sums over it in any split and order of its samples."""

import numpy as np
import torch

from zerogap.algorithms import loss_denominators, reduce_loss


class LossBatch:
    """Records of 1-11 tokens; masked slots hold NaN in every column."""

    def __init__(self, seed: int = 0, num_samples: int = 7, scale: float = 0.3) -> None:
        rng = np.random.default_rng(seed)
        self.sample = np.repeat(np.arange(num_samples), rng.integers(1, 12, size=num_samples))
        self.mask = rng.random(len(self.sample)) < 0.8
        self.mask[np.unique(self.sample, return_index=True)[1]] = True
        self.len = np.bincount(self.sample, weights=self.mask).astype(int)
        old = -rng.exponential(size=len(self.sample))
        self.columns = {
            "log_probs": old + rng.normal(scale=scale, size=len(old)),
            "old_log_probs": old,
            "advantages": rng.normal(size=num_samples)[self.sample],
        }
        for column in self.columns.values():
            column[~self.mask] = np.nan

    def denominators(self, kind: str = "token") -> np.ndarray:
        """One a sample."""
        return loss_denominators(self.len, kind=kind)

    def loss_and_gradient(self, terms_of, *, kind="token", parts=None):
        """The loss, and its gradient to every log-prob, summed over ``parts`` (lists of samples, in their order).

        ``terms_of(columns, tokens)`` gives the numerators of a part; its columns are tensors.
        """
        denominator = self.denominators(kind)
        loss, gradient = 0.0, np.zeros(len(self.sample))
        for part in parts or [range(len(self.len))]:
            tokens = np.concatenate([np.flatnonzero(self.sample == r) for r in part])
            columns = {name: torch.tensor(c[tokens]) for name, c in self.columns.items()}
            log_probs_T = columns["log_probs"].requires_grad_()
            columns["loss_mask"] = torch.tensor(self.mask[tokens])
            columns["sample"] = torch.tensor(self.sample[tokens])
            columns["sample_len"] = torch.tensor(self.len[self.sample[tokens]])
            total = reduce_loss(
                terms_of(columns),
                torch.tensor(denominator[self.sample[tokens]]),
                columns["loss_mask"],
            )
            total.backward()
            loss += total.item()
            gradient[tokens] += log_probs_T.grad.numpy()
        return loss, gradient
