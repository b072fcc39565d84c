"""Everything that a step decides before its first update.

The order matters: which samples take part; log-probs (old, reference, teacher) and critic values, before the weights
change; advantages, which rest on these; corrections, over the full batch; and denominators, over the full batch, whatever
was rejected.

Nothing here knows a model: ``Score`` makes the forward passes, in one process or in many. B samples.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from zerogap.algorithms import (
    Acceptance,
    Algorithm,
    Corrections,
    CorrectionsConfig,
    correct_mismatch,
    inference_gain,
    loss_denominators,
)
from zerogap.config.reward import RewardPart
from zerogap.config.train import TrainConfig
from zerogap.train.advantages import Scored, StepAdvantages, decide_advantages
from zerogap.train.old_log_probs import OldLogProbs, decide_old_log_probs, from_the_engine
from zerogap.train.participants import take_part
from zerogap.train.plan import StepPlan
from zerogap.train.preferences import preference_pairs
from zerogap.train.tokens import Score, StepTokens
from zerogap.types import Sample

_NO_PARTS: Mapping[str, RewardPart] = {}


def plan_step(
    samples: Sequence[Sample],
    score: Score,
    *,
    config: TrainConfig,
    algorithm: Algorithm,
    vocab_limit: int,
    step_number: int,
    exact_version: int | None,
    reward_parts: Mapping[str, RewardPart] = _NO_PARTS,
    can_undo: bool = False,
) -> StepPlan:
    """The plan of a step: a function of its arguments and of what ``score`` returns.

    Args:
        samples: as ``Trainer.plan`` takes them.
        score: forward passes with the weights as they are now.
        config: how many updates, and where old log-probs come from.
        algorithm: what decides the gradient.
        vocab_limit: ids at or past it do not exist.
        step_number: steps done before.
        exact_version: see ``Trainer.plan``.
        reward_parts: of a weighted sum, by name.
        can_undo: whether there is a step to undo.

    Raises:
        DataError: no sample trains, or one cannot be scored.
        NumericsError: a reward or a log-prob is not finite; names the sample.
    """
    who = take_part(samples, max_updates=config.updates_per_step, vocab_limit=vocab_limit)
    tokens = StepTokens(tuple(samples), who, reward_parts)
    leaf_B = _leaves(tokens)
    # Advantages or corrections may need all of them; otherwise the first update's forward pass gives its own.
    is_needed_first = algorithm.needs_old_first
    is_later_B = (who.update_B > 0) & algorithm.has_policy_ratio
    is_bypass = config.old_log_probs == "rollout"

    found = score.statistics(who.is_kept_B) if algorithm.needs_statistics else {}

    def decide_own(is_wanted_B: np.ndarray) -> OldLogProbs:
        return decide_old_log_probs(
            tokens,
            score,
            known_S=found.get("log_prob"),
            is_wanted_B=is_wanted_B,
            leaf_B=leaf_B,
            exact_version=exact_version,
            audit_share=config.audit_share,
            seed=step_number,
            is_final=is_needed_first,
        )

    if is_bypass:
        old = from_the_engine(tokens)
        # The ratio divides by the engine's; a rejection compares them with the policy's own all the same.
        own = decide_own(who.is_kept_B) if algorithm.corrections.needs_old_log_probs else old
    else:
        old = own = decide_own(who.is_kept_B if is_needed_first else is_later_B)
    is_taught_B = who.is_kept_B
    if algorithm.has_hints:
        is_taught_B = is_taught_B & [s.teacher_prompt_ids is not None for s in samples]
    teacher_keep_S = tokens.index.spread(is_taught_B) & tokens.trains_S
    scored = Scored(
        old_S=old.old_S,
        reference_S=score("reference", who.is_kept_B) if algorithm.needs_reference else None,
        teacher_S=score("teacher", is_taught_B) if algorithm.needs_teacher_scores else None,
        values_S=score("values", who.is_kept_B) if algorithm.critic else None,
        square_sums_S=found.get("square_sum"),
    )
    advantages = decide_advantages(tokens, scored, algorithm, teacher_keep_S)
    critic = algorithm.critic
    is_critic_alone = critic is not None and step_number < critic.warmup_steps
    pairs_P2 = _all_pairs(tokens) if algorithm.loss.compares_answers else None
    return StepPlan(
        step_number=step_number,
        tokens=tokens,
        denominator_B=_denominators(tokens, algorithm, pairs_P2),
        leaf_B=leaf_B,
        learns_B=_learners(tokens, advantages, leaf_B, algorithm) & (not is_critic_alone),
        advantages=advantages,
        old=old,
        ref_log_probs_S=scored.reference_S,
        values_S=scored.values_S,
        corrections=_correct(tokens, own, algorithm.corrections),
        off_policy_kl=algorithm.corrections.off_policy_kl,
        pairs_P2=pairs_P2,
        trains_policy=not is_critic_alone,
        acceptance=_judge(tokens, old, algorithm, step_number) if can_undo else None,
        num_epochs=config.epochs,
        teacher_keep_S=teacher_keep_S if algorithm.has_hints else None,
        policy_keep_S=_high_entropy(tokens, found.get("entropy"), algorithm.entropy.top_quantile),
    )


def _leaves(tokens: StepTokens) -> np.ndarray:
    number_of = {name: n for n, name in enumerate(dict.fromkeys(tokens.group_ids))}
    return np.array([number_of[group_id] for group_id in tokens.group_ids])


def _learners(
    tokens: StepTokens, advantages: StepAdvantages, leaf_B: np.ndarray, algorithm: Algorithm
) -> np.ndarray:
    """Bool [B]: samples of leaves whose gradient may differ from 0; the gradient of the others is exactly 0."""
    kept_B = tokens.who.is_kept_B
    if not algorithm.is_gradient_from_advantage:
        return kept_B
    is_nonzero_S = tokens.trains_S & (advantages.column_S != 0)
    return kept_B & np.isin(leaf_B, leaf_B[tokens.sample_S[is_nonzero_S]])


def _high_entropy(
    tokens: StepTokens, entropy_S: np.ndarray | None, top_quantile: float
) -> np.ndarray | None:
    """Bool [S]: the tokens with the highest entropies at the start of the step; None if all of them train."""
    if top_quantile == 1:
        return None
    assert entropy_S is not None, "an algorithm with a quantile asks for entropies"
    threshold = np.quantile(entropy_S[tokens.trains_S], 1 - top_quantile)
    return tokens.trains_S & (entropy_S >= threshold)


def _judge(
    tokens: StepTokens, old: OldLogProbs, algorithm: Algorithm, step_number: int
) -> Acceptance | None:
    """The judgement of the step before, if it is judged."""
    if algorithm.acceptance is None:
        return None
    gain = inference_gain(
        old.old_S,
        tokens.rollout_log_probs_S,
        tokens.trains_S,
        tokens.who.first_B[tokens.sample_S],
        tokens.rewards_B,
        tokens.group_ids,
        tokens.who.stands_for_rollout_B,
        name_token=tokens.index.name,
    )
    return Acceptance(gain, algorithm.acceptance.at(step_number))


def _correct(
    tokens: StepTokens, old: OldLogProbs, corrections: CorrectionsConfig
) -> Corrections | None:
    """Weights and rejections, if they are switched on."""
    if not corrections.needs_old_log_probs:
        return None
    return correct_mismatch(
        old.old_S,
        tokens.rollout_log_probs_S,
        tokens.trains_S,
        tokens.sample_S,
        weight=corrections.weight,
        mask=corrections.mask,
        veto=corrections.veto,
        name_token=tokens.index.name,
    )


def _all_pairs(tokens: StepTokens) -> np.ndarray:
    """The pairs of all updates, one update after the other."""
    who = tokens.who
    members = [who.update_B == number for number in range(who.num_updates)]
    return np.concatenate([preference_pairs(tokens.samples, is_in_B) for is_in_B in members])


def _denominators(
    tokens: StepTokens, algorithm: Algorithm, pairs_P2: np.ndarray | None
) -> np.ndarray:
    """float64 [B], each over its sample's update; infinite where a sample takes no part."""
    update_B = tokens.who.update_B
    denominator_B = np.full(len(update_B), np.inf)
    for number in range(tokens.who.num_updates):
        is_in_B = update_B == number
        if pairs_P2 is None:
            denominator_B[is_in_B] = _of_update(tokens, is_in_B, algorithm)[is_in_B]
        else:
            denominator_B[is_in_B] = float(is_in_B[pairs_P2[:, 0]].sum())
    return denominator_B


def _of_update(tokens: StepTokens, is_in_B: np.ndarray, algorithm: Algorithm) -> np.ndarray:
    kind, constant = algorithm.denominator
    ids_of = {"group": tokens.group_ids, "rollout": [s.rollout_id for s in tokens.samples]}
    return loss_denominators(
        tokens.num_loss_tokens_B * is_in_B,
        kind=kind,
        constant=constant,
        shared_ids=ids_of.get(kind),
        is_counted_B=is_in_B,
    )
