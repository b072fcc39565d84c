"""What a step reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from zerogap.algorithms import Exclusion, GapStatistics, GroupAdvantages, PolicyStatistics

Phase = Literal["old", "reference", "update"]


@dataclass(frozen=True)
class TrainProgress:
    """One micro-batch is done."""

    phase: Phase
    """old: log-probs before the first update; reference: of the frozen model; update: the loss."""
    rows_done: int
    """Rows computed so far in this step, in all phases."""
    rows_total: int


@dataclass(frozen=True, kw_only=True)
class OldLogProbAudit:
    """Of the updates after the first: tokens whose log-prob at the start of the step should be what the engine reported."""

    num_taken: int = 0
    """Tokens for which that was used, without a forward pass."""
    num_audited: int = 0
    """Tokens that were scored and compared."""
    num_different: int = 0
    """Tokens among them whose two log-probs differ; unless it is 0, everything was scored and nothing taken."""
    first_difference: str = ""
    """Names the record, if there is one."""


@dataclass(frozen=True)
class StepGradient:
    """Of a step's first update, before clipping."""

    loss: float
    grad_norm: float
    """Global 2-norm."""
    tensors: Mapping[str, Tensor]
    """By parameter; the buffers themselves: read or copy them before the trainer computes anything else."""
    num_updates: int
    """How many updates the step would make. Later ones start from weights that the earlier ones change."""


@dataclass(frozen=True)
class TrainMetrics:
    """One step. Statistics are over all trained tokens, each at the update it took part in."""

    loss: float
    """Mean over updates."""
    grad_norm: float
    """Global 2-norm before clipping, largest of the updates."""
    learning_rate: float
    policy: PolicyStatistics
    """Against the start of the step."""
    gap: GapStatistics
    """Trainer at the start of the step against the engine at sampling time, over the tokens that the trainer scored then."""
    kl_to_rollout: float
    """k3 of each token at its update against the engine at sampling time: estimates KL(engine || current), nats."""
    kl_to_reference: float | None
    """Mean KL estimate a token, nats; None without a reference."""
    groups: GroupAdvantages | None
    """Advantages a sample and what was found out about the groups, where the loss compares within them."""
    num_updates: int
    num_samples: int
    """Samples that trained."""
    excluded: Mapping[Exclusion, int]
    """Samples that did not, by reason."""
    num_loss_tokens: int
    num_micro_batches: int
    """In the updates; other phases use the same ones."""
    num_rows: int
    """Token rows of these micro-batches."""
    num_rows_without_gradient: int
    """Rows among them that needed no backward pass, since their groups' advantages are 0."""
    num_rows_saved: int
    """Rows that sharing prompts and other common prefixes left out."""
    num_rows_repeated: int
    """Rows among ``num_rows`` that another micro-batch computes as well, since their group did not fit into one."""
    micro_batch_fill: float
    """num_rows / (num_micro_batches * micro_batch_tokens); above 1 only where single samples exceed the budget."""
    seconds: Mapping[str, float]
    """Wall time by part: pack, old, reference, forward, backward, optimizer."""
    old_log_probs: tuple[np.ndarray, ...]
    """float32 [T] for each sample given, aligned with its tokens: what the trainer computed. NaN where nothing trained, and
    where a later update took the engine's instead."""
    advantages: tuple[np.ndarray, ...]
    """float64 [T] for each sample given, in the same way: what the loss weighed each token with."""
    audit: OldLogProbAudit
    """All 0 in a step of one update: its own forward pass gives them."""

    @property
    def saved_fraction(self) -> float:
        """Rows that sharing left out over the rows that there would be without it."""
        return self.num_rows_saved / (self.num_rows + self.num_rows_saved)

    @property
    def wasted_fraction(self) -> float:
        """Repeated rows over all rows."""
        return self.num_rows_repeated / self.num_rows
