"""One stage of the ledger by a second path: the check that a sum of differences cannot make.

The stage is a4, the log-probs under the weights that are about to train. A step with one update takes them from the trainer's own
forward pass: packed with other samples, on shared prompts, with gradient. Here the same tokens are scored alone: one sample, cut after a
drawn token, no gradient. Kernels whose rows do not depend on their batch give both the same bits.

What equal bits prove, for one sample a step: a4 belongs to this sample and these tokens, packing and shared prompts changed nothing,
and both passes saw the same weights. What they do not prove: both paths run the same model code, so a fault inside a
layer is in both; and a0, a1 (recorded by the engine), older versions and re-encoded text are not scored again. Without exact numerics the
two may differ by rounding. The difference is then recorded and nothing is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.errors import RecheckError
from zerogap.ledger.passes import Passes
from zerogap.types import Sample


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """The token whose two log-probs differ most; the drawn token if none differs."""

    rollout_id: str
    position: int
    num_tokens: int
    """Audited tokens that were compared."""
    log_prob: float
    """At stage a4."""
    again: float
    """Of the second path."""

    @property
    def difference(self) -> float:
        """|again - log_prob|, nats; 0.0 where numerics are exact."""
        return abs(self.again - self.log_prob)


@dataclass(frozen=True, eq=False, kw_only=True)
class Rescored:
    """A sample scored alone up to a drawn token."""

    sample: int
    """Its index among the audited samples."""
    again: np.ndarray
    """float64 [P]: of the sample's first P tokens; the last is the drawn one."""
    is_audited: np.ndarray
    """bool [P]: tokens that are compared."""

    def compare(self, sample: Sample, present: np.ndarray, *, is_exact: bool) -> Recheck:
        """Compare the audited tokens with stage a4.

        Args:
            sample: the audited one.
            present: float64 [T]: its log-probs at stage a4, finite at audited tokens.
            is_exact: whether the numerics promise that both are equal to the bit.

        Raises:
            RecheckError: they are promised to be equal and differ.
        """
        difference = np.abs(present[: len(self.again)] - self.again)
        # Whatever is not a number differs.
        size = np.where(self.is_audited, np.nan_to_num(difference, nan=np.inf), 0.0)
        at = int(size.argmax()) if size.any() else len(size) - 1
        found = Recheck(
            rollout_id=sample.rollout_id,
            position=at,
            num_tokens=int(self.is_audited.sum()),
            log_prob=float(present[at]),
            again=float(self.again[at]),
        )
        if is_exact and size[at] > 0:
            raise RecheckError(_message(found))
        return found


def rescore_one(
    samples: Sequence[Sample], is_audited: Sequence[np.ndarray], passes: Passes, *, version: int
) -> Rescored | None:
    """Draw a sample and one of its audited tokens, and score the sample alone up to it; None if no token is audited.

    Args:
        samples: of the audit.
        is_audited: bool [T] for each.
        passes: over these samples.
        version: of the weights now; it also seeds the draw, so that every step draws anew and a repeated step draws the same.

    Raises:
        WeightSyncError: the scorer has no weights of ``version``.
    """
    drawable = [i for i, here in enumerate(is_audited) if here.any()]
    if not drawable:
        return None
    rng = np.random.default_rng((version, _DRAWING))
    at = drawable[rng.integers(len(drawable))]
    end = int(rng.choice(np.flatnonzero(is_audited[at]))) + 1
    again = passes.alone(samples[at].truncate(end), version)
    return Rescored(sample=at, again=again, is_audited=is_audited[at][:end])


_DRAWING = 0x5EC0D
"""Separates this random stream from all others."""


def _message(found: Recheck) -> str:
    return (
        f"rollout {found.rollout_id}, position {found.position}: the log-prob under the weights that train is {found.log_prob!r} in the "
        f"step's own pass and {found.again!r} where the sample is scored alone, but exact numerics promise the same bits; one of the two belongs to "
        "another token or other weights, or a kernel's rows depend on their batch: run `zerogap certify` on this machine, and report it with this sample"
    )
