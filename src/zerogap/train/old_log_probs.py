"""Log-probs at the start of the step: where they come from, and the audit of those that are taken from the engine.

The first update gets them from its own forward pass: no weight has changed, and the kernels are batch-invariant.
Later updates need theirs before the first is applied; corrections need all of them before the first forward pass.

Where engine and trainer agree to the bit, the engine has already reported them for samples that the present weights drew.
The trainer takes these without a forward pass. It still scores a share of the groups, and compares the first update's
forward passes too. If one token differs, it scores everything. (If the first update's forward pass finds the difference
and advantages or corrections rest on the log-probs by then, it only counts the tokens that differ.)

B samples, S all their tokens.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from zerogap.train.metrics import OldLogProbAudit
from zerogap.train.tokens import Score, StepTokens
from zerogap.types import Sample


@dataclass(frozen=True, eq=False, kw_only=True)
class OldLogProbs:
    """Old log-probs as they are known before the first update."""

    own_S: np.ndarray
    """float32 [S]: those that the trainer's policy computed; NaN elsewhere."""
    old_S: np.ndarray
    """float32 [S]: those that the policy ratio divides by; NaN where the first update's own forward pass will compute them."""
    is_exact_S: np.ndarray
    """bool [S]: tokens whose rollout log-probs should equal the trainer's to the bit."""
    is_taken_B: np.ndarray
    """bool [B]: samples whose old log-probs are the engine's, without a forward pass."""
    is_final: bool
    """Advantages or corrections rest on them, so they must not change."""
    audit: OldLogProbAudit


def from_the_engine(tokens: StepTokens) -> OldLogProbs:
    """The engine's log-probs for every token; the trainer scores nothing."""
    own_S = tokens.index.new_column()
    return OldLogProbs(
        own_S=own_S,
        old_S=np.where(tokens.trains_S, tokens.rollout_log_probs_S, own_S),
        is_exact_S=np.zeros(len(own_S), bool),
        is_taken_B=np.zeros(len(tokens.samples), bool),
        is_final=True,
        audit=OldLogProbAudit(),
    )


def decide_old_log_probs(
    tokens: StepTokens,
    score: Score,
    *,
    known_S: np.ndarray | None,
    is_wanted_B: np.ndarray,
    leaf_B: np.ndarray,
    exact_version: int | None,
    audit_share: float,
    seed: int,
    is_final: bool,
) -> OldLogProbs:
    """Score what cannot be taken from the engine, and an audited share; score everything if the audit finds a difference.

    Where all of them are known, none is taken and each is audited.

    Args:
        tokens: of the step.
        score: makes forward passes with the weights at the start of the step.
        known_S: float32 [S]: the policy's, if a pass over all samples was made for another reason.
        is_wanted_B: bool [B]: samples whose old log-probs must be known before the first update is applied.
        leaf_B: as in ``StepPlan``.
        exact_version: see ``Trainer.plan``.
        audit_share: in (0, 1]: share of the leaves that could be taken but are scored; at least one leaf.
        seed: picks these leaves.
        is_final: as in ``OldLogProbs``.
    """
    is_exact_B = np.array([_is_drawn_by(sample, exact_version) for sample in tokens.samples])
    is_exact_S = tokens.index.spread(is_exact_B)
    if known_S is not None:
        return OldLogProbs(
            own_S=known_S,
            old_S=known_S,
            is_exact_S=is_exact_S,
            is_taken_B=np.zeros_like(is_wanted_B),
            is_final=is_final,
            audit=compare(tokens, known_S, is_exact_S),
        )
    taken = _pick(leaf_B, is_wanted_B, is_exact_B, audit_share=audit_share, seed=seed)
    is_taken_B = is_wanted_B & np.isin(leaf_B, taken)
    own_S = tokens.index.new_column()
    if (is_scored_B := is_wanted_B & ~is_taken_B).any():
        own_S = score("old", is_scored_B)
    audit = compare(tokens, own_S, is_exact_S)
    if audit.num_different and is_taken_B.any():
        own_S = np.where(np.isnan(own_S), score("old", is_taken_B), own_S)
        is_taken_B = np.zeros_like(is_taken_B)
        audit = compare(tokens, own_S, is_exact_S)
    is_taken_S = tokens.index.spread(is_taken_B) & tokens.trains_S
    return OldLogProbs(
        own_S=own_S,
        old_S=np.where(is_taken_S, tokens.rollout_log_probs_S, own_S),
        is_exact_S=is_exact_S,
        is_taken_B=is_taken_B,
        is_final=is_final,
        audit=replace(audit, num_taken=int(is_taken_S.sum())),
    )


def compare(tokens: StepTokens, own_S: np.ndarray, is_exact_S: np.ndarray) -> OldLogProbAudit:
    """Compare the policy's log-probs with the engine's, where the two should have the same bits."""
    reported_S = tokens.rollout_log_probs_S
    is_audited_S = is_exact_S & ~np.isnan(own_S)
    different = np.flatnonzero(is_audited_S & (own_S != reported_S))
    first = ""
    if len(different):
        at = int(different[0])
        first = f"{tokens.index.name(at)}: the engine reported {reported_S[at]!s}, the trainer finds {own_S[at]!s}"
    return OldLogProbAudit(
        num_audited=int(is_audited_S.sum()), num_different=len(different), first_difference=first
    )


def _pick(
    leaf_B: np.ndarray,
    is_wanted_B: np.ndarray,
    is_exact_B: np.ndarray,
    *,
    audit_share: float,
    seed: int,
) -> np.ndarray:
    """The leaves whose log-probs are taken from the engine."""
    could_take = np.setdiff1d(leaf_B[is_wanted_B], leaf_B[is_wanted_B & ~is_exact_B])
    num_taken = len(could_take) - math.ceil(audit_share * len(could_take))
    return np.random.default_rng(seed).permutation(could_take)[:num_taken]


def _is_drawn_by(sample: Sample, version: int | None) -> bool:
    """Whether this version drew all sampled tokens: a token after older ones may attend to another policy's keys."""
    versions = sample.weight_version[sample.weight_version >= 0]
    return version is not None and bool((versions == version).all())
