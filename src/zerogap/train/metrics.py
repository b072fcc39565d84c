"""The metrics that a step reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from zerogap.algorithms import (
    CorrectionStatistics,
    GapStatistics,
    GroupAdvantages,
    PolicyStatistics,
)
from zerogap.types import Exclusion

Phase = Literal[
    "old",
    "reference",
    "teacher",
    "values",
    "preferences",
    "update",
    "critic",
]


@dataclass(frozen=True)
class TrainProgress:
    """How far a step is, after each micro-batch."""

    phase: Phase
    """old, reference, teacher: log-probs of the policy before its first update, of the reference, of the teacher; values: the
    critic's; preferences: log-probs before an update on preferences; update, critic: the loss of the policy, of the critic."""
    rows_done: int
    """Rows computed so far in this step, in all phases."""
    rows_total: int


@dataclass(frozen=True, kw_only=True)
class OldLogProbAudit:
    """Of updates after the first: tokens whose log-prob at the start of the step should equal the engine's to the bit."""

    num_taken: int = 0
    """Tokens for which the engine's was used, without a forward pass."""
    num_audited: int = 0
    """Tokens that were scored and compared."""
    num_different: int = 0
    """Audited tokens whose two log-probs differ. If there are any, everything was scored and nothing taken."""
    first_difference: str = ""
    """Names the first such token and both log-probs; empty if there is none."""


@dataclass(frozen=True)
class StepGradient:
    """Loss and gradient of a step's first update, before clipping."""

    loss: float
    grad_norm: float
    """Global 2-norm."""
    tensors: Mapping[str, Tensor]
    """By parameter name. They are the trainer's buffers: read or copy them before it computes anything else."""
    num_updates: int
    """How many updates the step would make. Later ones start from weights that the earlier ones change."""


@dataclass(frozen=True, kw_only=True)
class CriticMetrics:
    """How good a critic's values were at the start of the step, and how it was updated."""

    loss: float
    """Mean over updates."""
    grad_norm: float
    """Before clipping, largest of the updates."""
    value_mean: float
    """Over trained tokens, at the start of the step."""
    return_mean: float
    explained_variance: float | None
    """1 - var(returns - values) / var(returns): 1 is a perfect critic, 0 a constant; None where all returns are equal."""
    clip_fraction: float
    """Share of tokens whose value was clipped."""
    is_alone: bool
    """The critic warms up: the policy did not train."""


@dataclass(frozen=True, kw_only=True)
class PreferenceMetrics:
    """Statistics over pairs, each from before its update."""

    accuracy: float
    """Share of pairs whose preferred answer has the larger reward."""
    margin_mean: float
    """Mean of the preferred minus the other reward."""
    chosen_reward_mean: float
    """beta (log pi - log ref) of the preferred answer."""
    rejected_reward_mean: float
    num_pairs: int


@dataclass(frozen=True)
class TrainMetrics:
    """One step. Statistics are over all trained tokens, each at the update that it took part in."""

    loss: float
    """Mean over updates."""
    grad_norm: float
    """Global 2-norm before clipping, largest of the updates; 0 in a step in which the critic learns alone."""
    learning_rate: float
    policy: PolicyStatistics
    """Policy against old log-probs, over the tokens that have old log-probs."""
    gap: GapStatistics | None
    """Trainer at the start of the step against the engine at sampling time, over the tokens that the trainer scored then. None
    where no engine sampled."""
    corrections: CorrectionStatistics | None
    """Old log-probs against the engine's, and the corrections; None where no engine sampled."""
    off_policy_fraction: float
    """Share of tokens that ``corrections.off_policy_kl`` dropped, because the policy had moved too far from their sample."""
    kl_to_rollout: float | None
    """k3 of each token at its update against the engine at sampling time: estimates KL(engine || current), nats."""
    kl_to_reference: float | None
    """Mean KL estimate a token, nats; None without a penalty on it."""
    kl_to_teacher: float | None
    """Mean estimate of the KL to the teacher a token, nats: of the drawn token at the start of the step, or over the teacher's
    likeliest ids at its update."""
    critic: CriticMetrics | None
    preferences: PreferenceMetrics | None
    groups: GroupAdvantages | None
    """Advantages of each sample and statistics of the groups, where the loss compares within them."""
    num_updates: int
    num_updates_without_signal: int
    """Updates among them whose gradient was exactly 0, so that weights and moments stayed."""
    num_samples: int
    """Samples that trained."""
    excluded: Mapping[Exclusion, int]
    """How many samples did not train, by reason."""
    num_loss_tokens: int
    num_micro_batches: int
    """In the updates; other phases use the same ones."""
    num_rows: int
    """Token rows of these micro-batches."""
    num_rows_without_gradient: int
    """Rows among them without a backward pass, because their groups' advantages are 0."""
    num_rows_saved: int
    """Rows that were not computed, because prompts and other common prefixes are shared."""
    num_rows_repeated: int
    """Rows among ``num_rows`` that another micro-batch also computes, because their group did not fit into one."""
    micro_batch_fill: float
    """num_rows / (num_micro_batches * micro_batch_tokens); above 1 only where single samples exceed the budget."""
    seconds: Mapping[str, float]
    """Wall time by part: pack, old, reference, teacher, values, preferences, forward, backward, optimizer, critic."""
    old_log_probs: tuple[np.ndarray, ...]
    """float32 [T] for each sample given, aligned with its tokens: what the trainer computed. NaN where nothing trained, and
    where a later update took the engine's instead."""
    advantages: tuple[np.ndarray, ...]
    """float64 [T] for each sample given, likewise: the weight of each token in the loss. A single advantage of a sample stands
    at all of its tokens."""
    audit: OldLogProbAudit
    """All 0 in a step of one update, whose own forward pass gives the old log-probs."""

    @property
    def saved_fraction(self) -> float:
        """Rows that sharing saved, as a share of the rows without sharing."""
        return self.num_rows_saved / (self.num_rows + self.num_rows_saved)

    @property
    def wasted_fraction(self) -> float:
        """Repeated rows over all rows."""
        return self.num_rows_repeated / self.num_rows
