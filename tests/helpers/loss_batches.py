"""Columns of a small train batch for losses, and sums over it in any split and order of its samples."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from zerogap.algorithms import (
    Loss,
    LossTerms,
    RatioLoss,
    Surrogate,
    loss_denominators,
    policy_ratio,
    reduce_loss,
)


def surrogate_of(loss: Loss, columns: Mapping[str, Tensor]) -> Surrogate:
    """A loss's terms, with the ratio at its level."""
    ratio_T = policy_ratio(
        columns["log_probs"],
        columns["old_log_probs"],
        columns["sample"],
        columns["sample_len"],
        level=loss.ratio if isinstance(loss, RatioLoss) else "token",
    )
    return loss.surrogate(
        LossTerms(
            log_probs_T=columns["log_probs"],
            ratio_T=ratio_T,
            advantages_T=columns["advantages"],
            old_log_probs_T=columns["old_log_probs"],
            rollout_log_probs_T=columns["rollout_log_probs"],
        )
    )


class LossBatch:
    """Samples of 1-11 tokens; masked slots hold NaN in every column, and no loss gets to see them."""

    def __init__(self, seed: int = 0, num_samples: int = 7, scale: float = 0.3) -> None:
        rng = np.random.default_rng(seed)
        self.sample = np.repeat(np.arange(num_samples), rng.integers(1, 12, size=num_samples))
        self.mask = rng.random(len(self.sample)) < 0.8
        self.mask[np.unique(self.sample, return_index=True)[1]] = True
        self.len = np.bincount(self.sample, weights=self.mask).astype(int)
        old = -rng.exponential(size=len(self.sample))
        self.columns = {
            "log_probs": np.minimum(old + rng.normal(scale=scale, size=len(old)), -1e-3),
            "old_log_probs": old,
            "advantages": rng.normal(size=num_samples)[self.sample],
            "rollout_log_probs": np.minimum(old + rng.normal(scale=scale, size=len(old)), -1e-3),
        }
        for column in self.columns.values():
            column[~self.mask] = np.nan

    def denominators(self, kind: str = "token") -> np.ndarray:
        """One a sample."""
        return loss_denominators(self.len, kind=kind)

    def tensors(self, tokens: np.ndarray | None = None) -> dict[str, Tensor]:
        """The columns at ``tokens`` (default: all that train), and the sample of each and its length."""
        tokens = np.flatnonzero(self.mask) if tokens is None else tokens
        columns = {name: torch.tensor(c[tokens]) for name, c in self.columns.items()}
        columns["log_probs"].requires_grad_()
        columns["sample"] = torch.tensor(self.sample[tokens])
        columns["sample_len"] = torch.tensor(self.len[self.sample[tokens]])
        return columns

    def loss_and_gradient(
        self,
        terms_of: Callable[[dict[str, Tensor]], Tensor],
        *,
        kind: str = "token",
        parts=None,
        weight_S: np.ndarray | None = None,
        keep_S: np.ndarray | None = None,
    ) -> tuple[float, np.ndarray]:
        """The loss, and its gradient to every log-prob, summed over ``parts`` (lists of samples, in their order).

        ``terms_of(columns)`` gives the numerators of a part; its columns are tensors of the tokens that train.
        """
        denominator = self.denominators(kind)
        loss, gradient = 0.0, np.zeros(len(self.sample))
        for part in parts or [range(len(self.len))]:
            tokens = np.concatenate([np.flatnonzero(self.mask & (self.sample == r)) for r in part])
            columns = self.tensors(tokens)
            keep = np.ones(len(tokens), bool) if keep_S is None else keep_S[tokens]
            total = reduce_loss(
                terms_of(columns),
                torch.tensor(denominator[self.sample[tokens]]),
                torch.tensor(keep),
                weight_T=None if weight_S is None else torch.tensor(weight_S[tokens]),
            )
            total.backward()
            loss += total.item()
            gradient[tokens] += columns["log_probs"].grad.numpy()
        return loss, gradient
