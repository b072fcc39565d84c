"""What every kind of advantage declares. It is a section of a recipe: its options are fields, its formula is a method."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zerogap.algorithms.finite import name_by_index
from zerogap.algorithms.group_statistics import GroupAdvantages
from zerogap.algorithms.per_sample import sample_sums
from zerogap.algorithms.returns import token_rewards
from zerogap.section import Section


@dataclass(frozen=True, eq=False, kw_only=True)
class AdvantageInputs:
    """What is known of a step's samples before its first update. B samples, S all their tokens, sample by sample."""

    rewards_B: np.ndarray
    """float64 [B]; NaN without one."""
    is_valid_B: np.ndarray
    """bool [B]: samples that take part; the others' rewards must not be read."""
    first_B: np.ndarray | None = None
    """int64 [B]: the sample that stands for each sample's rollout; None: every rollout has one sample."""
    group_ids: Sequence[str]
    """[B]: samples with one id answer one prompt."""
    loss_mask_S: np.ndarray
    """bool [S]: tokens that train; False at all tokens of samples that take no part."""
    sample_S: np.ndarray
    """int64 [S]: the sample of each token."""
    old_log_probs_S: np.ndarray | None = None
    """float32 [S]: the policy's at the start of the step; None if nothing asked for them before the first update."""
    penalties_S: np.ndarray | None = None
    """float64 [S]: what the KL subtracts from each token's reward; None without a KL in the reward."""
    values_S: np.ndarray | None = None
    """float32 [S]: the critic's, before each token."""
    square_sums_S: np.ndarray | None = None
    """float32 [S]: sum over the vocabulary of the squared probabilities at each token, for ``token_baseline``."""
    name_token: Callable[[int], str] = name_by_index

    @property
    def stands_for_rollout_B(self) -> np.ndarray:
        """Bool [B]: one valid sample a rollout, so that a rollout counts once among its group."""
        if self.first_B is None:
            return self.is_valid_B
        return self.is_valid_B & (self.first_B == np.arange(len(self.first_B)))

    @property
    def penalties_B(self) -> np.ndarray | None:
        """float64 [B]: the penalties of the tokens of each sample's rollout, added up."""
        if self.penalties_S is None:
            return None
        sums_B = sample_sums(
            self.penalties_S,
            self.loss_mask_S,
            self.sample_S,
            num_samples=len(self.rewards_B),
            what="penalty",
            name_token=self.name_token,
        )
        if self.first_B is None:
            return sums_B
        return np.bincount(self.first_B, sums_B, minlength=len(sums_B))[self.first_B]

    def token_rewards(self, rewards_B: np.ndarray) -> np.ndarray:
        """float64 [S]: a reward for each rollout on its last trainable token, less the penalties of every token."""
        return token_rewards(
            rewards_B, self.loss_mask_S, self.rollout_S, penalties_S=self.penalties_S
        )

    @property
    def rollout_S(self) -> np.ndarray:
        """int64 [S]: the sample that stands for each token's rollout."""
        return self.of_rollout(np.arange(len(self.rewards_B)))[self.sample_S]

    def spread(self, values_B: np.ndarray) -> np.ndarray:
        """[S]: the value of each sample's rollout at all of its tokens."""
        return self.of_rollout(values_B)[self.sample_S]

    def of_rollout(self, values_B: np.ndarray) -> np.ndarray:
        """[B]: the value of the sample that stands for each sample's rollout."""
        return values_B if self.first_B is None else values_B[self.first_B]


@dataclass(frozen=True, eq=False)
class Advantages:
    """The advantages of the tokens of all samples."""

    column_S: np.ndarray
    """float64 [S]; may be NaN where nothing trains."""
    groups: GroupAdvantages | None = None
    """Statistics of the groups, if samples were compared within groups."""
    returns_S: np.ndarray | None = None
    """float64 [S]: the critic's regression targets."""


class AdvantageConfig(Section):
    """[advantage]: what a token is worth."""

    kind: str
    """How."""
    compares_within_group: ClassVar[bool] = False
    """Whether the advantage of a completion depends on others of the same prompt."""
    uses_rewards: ClassVar[bool] = True
    """Whether rewards train anything."""
    needs_old_log_probs: ClassVar[bool] = False
    """Whether it reads the policy's log-probs at the start of the step."""

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """The advantage of each token that trains."""
        raise NotImplementedError
