"""The record: one trainable token sequence and everything known about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from zerogap.errors import DataError
from zerogap.types.generation import FinishReason, GenerateOutput
from zerogap.types.outcome import Outcome


class Source(IntEnum):
    """Who wrote a token."""

    PROMPT = 0
    POLICY = 1
    ENVIRONMENT = 2
    DEMONSTRATION = 3
    """Part of a reference answer: nobody sampled it, and it trains all the same."""


SAMPLE_COLUMNS = {
    "token_ids": np.int32,
    "source": np.uint8,
    "loss_mask": np.bool_,
    "rollout_log_probs": np.float32,
    "kept_log_mass": np.float32,
    "weight_version": np.int32,
}
"""The fields of a sample that have an entry a token, and their types; on disk too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One trainable token sequence of length T, in columns.

    Only the policy's own sampled tokens carry a log-prob. They and the tokens of a reference answer may
    train: ``loss_mask`` implies ``source == POLICY`` and a finite ``rollout_log_probs``, or
    ``source == DEMONSTRATION``. Whatever was not sampled (a reference answer, a template's header, an
    environment's reply) has NaN there and version -1; headers and replies have mask False.
    """

    token_ids: np.ndarray
    """int32 [T]: prompt, policy and environment tokens in order."""
    source: np.ndarray
    """uint8 [T]: a ``Source`` a token."""
    loss_mask: np.ndarray
    """bool [T]: True exactly on the tokens, sampled or of a reference answer, that may train."""
    rollout_log_probs: np.ndarray
    """float32 [T], nats, after temperature and penalties, whole vocabulary; NaN where not sampled."""
    kept_log_mass: np.ndarray
    """float32 [T]: log mass of the set that could be drawn; 0 without truncation or where not sampled."""
    weight_version: np.ndarray
    """int32 [T]: version of the weights that sampled the token; -1 where not sampled."""
    group_id: str
    """Samples with one prompt share it; advantages are computed within it and nowhere else."""
    rollout_id: str
    temperature: float = 1.0
    """Temperature of sampling; log-probs are comparable only at the same one."""
    turns: tuple[tuple[int, int], ...] = ()
    """Half-open spans of policy (or demonstration) tokens, one a turn."""
    finish_reason: FinishReason = field(default_factory=lambda: FinishReason("stop"))
    outcome: Outcome = Outcome.COMPLETED
    outcome_detail: str = ""
    """What failed, when the outcome is a failure."""
    reward: float | None = None
    """None until scored, and for ever when the outcome is a failure. Of a demonstration: None, or where answers
    are compared 1 for the preferred one and 0 for the other."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    text: str = ""
    """The completion decoded, for people; never tokenised again."""

    def __post_init__(self) -> None:
        for name, dtype in SAMPLE_COLUMNS.items():
            column = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        self._check()

    def _check(self) -> None:
        lengths = {name: getattr(self, name).shape for name in SAMPLE_COLUMNS}
        if len(set(lengths.values())) != 1 or self.token_ids.ndim != 1:
            msg = f"rollout {self.rollout_id}: columns differ in length: {lengths}; every column needs one entry a token"
            raise DataError(msg)
        for what, (where, remedy) in self._problems().items():
            if where.any():
                at = int(np.flatnonzero(where)[0])
                msg = f"rollout {self.rollout_id}: {what} (first at position {at}: id {self.token_ids[at]}, log-prob {self.rollout_log_probs[at]}); {remedy}"
                raise DataError(msg)
        if self.reward is not None and not (self.outcome.is_valid and np.isfinite(self.reward)):
            msg = f"rollout {self.rollout_id}: reward {self.reward} with outcome {self.outcome}: only a completed or truncated rollout has a reward, and it is finite"
            raise DataError(msg)

    def _problems(self) -> dict[str, tuple[np.ndarray, str]]:
        """What must not be, where it is, bool [T], and what to do about it."""
        is_demonstration = self.source == Source.DEMONSTRATION
        is_sampled = self.weight_version >= 0
        may_train = is_demonstration | ((self.source == Source.POLICY) & is_sampled)
        has_log_prob = ~np.isnan(self.rollout_log_probs)
        return {
            "a token of a reference answer with a weight version": (
                is_demonstration & is_sampled,
                "nobody sampled it, so give it version -1; a sampled token has source POLICY",
            ),
            "loss_mask on a token that the policy did not sample": (
                self.loss_mask & ~may_train,
                "only sampled tokens and reference answers (source DEMONSTRATION) train; set its mask to False",
            ),
            "a sampled token without a finite rollout log-prob": (
                is_sampled & ~np.isfinite(self.rollout_log_probs),
                "without it no ratio can be formed; have the generator report log-probs",
            ),
            "a token that was not sampled but has a rollout log-prob": (
                ~is_sampled & has_log_prob,
                "no policy drew it; set the log-prob to NaN, or give the version that sampled it",
            ),
            "a positive rollout log-prob": (
                is_sampled & (self.rollout_log_probs > 0),
                "a probability is at most 1; report log-probs in nats",
            ),
            "a negative token id": (self.token_ids < 0, "use ids of the model's tokenizer"),
        }

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that train."""
        return int(self.loss_mask.sum())

    @property
    def is_demonstration(self) -> bool:
        """Whether it is a reference answer: nothing of it was sampled, so it has no gap and no staleness."""
        return bool((self.source == Source.DEMONSTRATION).any())

    @property
    def num_prompt_tokens(self) -> int:
        """Leading tokens written by the prompt."""
        other = np.flatnonzero(self.source != Source.PROMPT)
        return int(other[0]) if len(other) else len(self)

    @classmethod
    def from_output(cls, output: GenerateOutput, *, group_id: str, temperature: float) -> "Sample":
        """One single-turn sample from an engine's output; reward still open."""
        num_prompt, num_out = len(output.prompt_ids), len(output.output_ids)
        prompt = np.zeros(num_prompt, np.float32)
        versions = np.full(num_prompt + num_out, -1, np.int32)
        for span in output.weight_versions:
            versions[num_prompt + span.start : num_prompt + span.end] = span.version
        is_aborted = output.finish_reason.kind == "abort"
        outcome = Outcome.TRUNCATED if output.finish_reason.kind == "length" else Outcome.COMPLETED
        return cls(
            token_ids=np.concatenate([output.prompt_ids, output.output_ids]),
            source=np.repeat([Source.PROMPT, Source.POLICY], [num_prompt, num_out]),
            loss_mask=np.repeat([False, not is_aborted], [num_prompt, num_out]),
            rollout_log_probs=np.concatenate([prompt * np.nan, output.output_log_probs]),
            kept_log_mass=np.concatenate([prompt, output.kept_log_mass]),
            weight_version=versions,
            group_id=group_id,
            rollout_id=f"{group_id}/{output.index}",
            temperature=temperature,
            turns=((num_prompt, num_prompt + num_out),),
            finish_reason=output.finish_reason,
            outcome=Outcome.ABORTED if is_aborted else outcome,
            outcome_detail=output.finish_reason.message or "",
            seed=output.seed,
            text=output.text or "",
        )

    @classmethod
    def demonstration(
        cls,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        *,
        group_id: str,
        rollout_id: str,
        reward: float | None = None,
        text: str = "",
    ) -> "Sample":
        """A reference answer: its tokens train, and no policy has drawn them.

        Args:
            prompt_ids: as the policy would be given them.
            answer_ids: the answer's, with the token that ends it.
            group_id: of the prompt.
            rollout_id: unique in the step.
            reward: None, or where answers are compared 1 for the preferred one and 0 for the other.
            text: the answer, for people.

        Raises:
            DataError: the answer has no token.
        """
        num_prompt, num_answer = len(prompt_ids), len(answer_ids)
        if not num_answer:
            msg = f"rollout {rollout_id}: a reference answer without tokens has nothing to train on; give at least the token that ends it"
            raise DataError(msg)
        num_tokens = num_prompt + num_answer
        return cls(
            token_ids=np.array([*prompt_ids, *answer_ids]),
            source=np.repeat([Source.PROMPT, Source.DEMONSTRATION], [num_prompt, num_answer]),
            loss_mask=np.repeat([False, True], [num_prompt, num_answer]),
            rollout_log_probs=np.full(num_tokens, np.nan),
            kept_log_mass=np.zeros(num_tokens),
            weight_version=np.full(num_tokens, -1),
            group_id=group_id,
            rollout_id=rollout_id,
            turns=((num_prompt, num_tokens),),
            finish_reason=FinishReason("stop", matched=answer_ids[-1]),
            reward=reward,
            text=text,
        )

    def append(
        self,
        token_ids: np.ndarray,
        *,
        source: Source,
        rollout_log_probs: np.ndarray | None = None,
        kept_log_mass: np.ndarray | None = None,
        weight_version: int = -1,
    ) -> "Sample":
        """A longer sample. Sampled tokens (``weight_version >= 0``) need log-probs and train; others do not."""
        num_new = len(token_ids)
        is_sampled = weight_version >= 0
        if is_sampled and rollout_log_probs is None:
            msg = f"rollout {self.rollout_id}: {num_new} sampled tokens of version {weight_version} without log-probs; pass rollout_log_probs, or source=ENVIRONMENT without a version"
            raise DataError(msg)
        new = {
            "token_ids": token_ids,
            "source": np.full(num_new, source),
            "loss_mask": np.full(num_new, is_sampled),
            "rollout_log_probs": np.full(num_new, np.nan)
            if rollout_log_probs is None
            else rollout_log_probs,
            "kept_log_mass": np.zeros(num_new) if kept_log_mass is None else kept_log_mass,
            "weight_version": np.full(num_new, weight_version),
        }
        turn = ((len(self), len(self) + num_new),) if is_sampled else ()
        columns = {
            name: np.concatenate([getattr(self, name), new[name]]) for name in SAMPLE_COLUMNS
        }
        return replace(self, **columns, turns=self.turns + turn)

    def slice(self, start: int, end: int) -> "Sample":
        """Tokens ``[start, end)`` with all their columns; turns are cut to it."""
        columns = {name: getattr(self, name)[start:end] for name in SAMPLE_COLUMNS}
        cut = ((max(a, start) - start, min(b, end) - start) for a, b in self.turns)
        return replace(self, **columns, turns=tuple((a, b) for a, b in cut if a < b))

    def truncate(self, length: int) -> "Sample":
        """The first ``length`` tokens."""
        return self.slice(0, length)

    def failed(self, outcome: Outcome, detail: str) -> "Sample":
        """The same sample with an invalid outcome, no reward, and nothing to train."""
        return replace(
            self,
            outcome=outcome,
            outcome_detail=detail,
            reward=None,
            loss_mask=np.zeros(len(self), bool),
        )

    def scored(self, reward: float, parts: Mapping[str, float] | None = None) -> "Sample":
        """The same sample with its reward."""
        return replace(self, reward=float(reward), reward_parts=dict(parts or {}))


@dataclass(frozen=True, kw_only=True)
class Group:
    """The samples of one prompt. Members are found by ``group_id``, never by their place in a list."""

    group_id: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        strangers = [s.rollout_id for s in self.samples if s.group_id != self.group_id]
        if strangers:
            msg = f"group {self.group_id} was given samples of other groups: {strangers}"
            raise DataError(msg)
