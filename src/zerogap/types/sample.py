"""A sample: one trainable token sequence and everything known about it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from zerogap.errors import DataError
from zerogap.types.columns import Ragged, Values, column, columns_of
from zerogap.types.generation import FinishReason, GenerateOutput
from zerogap.types.outcome import Outcome


class Source(IntEnum):
    """Who wrote a token."""

    PROMPT = 0
    POLICY = 1
    ENVIRONMENT = 2
    DEMONSTRATION = 3
    """Part of a reference answer: trains though it was not sampled."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Tokens ``[start, end)`` of a sample: one completion of the policy, or a reference answer."""

    start: int
    end: int
    finish_reason: FinishReason = field(default_factory=lambda: FinishReason("stop"))
    seed: int = 0
    """Seed of the turn's sampling noise; 0 if nothing was sampled."""


@dataclass(frozen=True)
class WeightVersionSpan:
    """Tokens ``[start, end)`` of a turn were sampled by weights ``version``."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """One trainable token sequence of length T, in columns.

    A field declared with ``column`` has one row per token. ``append``, ``slice``, the checks, storage and capsules read
    these declarations, so a new column needs only a new field.

    Only tokens that the policy sampled have a log-prob. They and the tokens of a reference answer may train:
    ``loss_mask`` implies ``source == POLICY`` and a finite ``rollout_log_probs``, or ``source == DEMONSTRATION``. A token
    that was not sampled (of a reference answer, a template's header, an environment's reply) has log-prob NaN and
    version -1; headers and replies have mask False.

    Example:
        A prompt, a turn, the environment's reply, and another turn:
        ``Sample.from_output(first, group_id="g", temperature=1.0).append(reply, source=Source.ENVIRONMENT).append_output(second)``
    """

    token_ids: np.ndarray = field(metadata=column(np.int32))
    """int32 [T]: prompt, policy and environment tokens in order."""
    source: np.ndarray = field(metadata=column(np.uint8))
    """uint8 [T]: the ``Source`` of each token."""
    loss_mask: np.ndarray = field(metadata=column(np.bool_))
    """bool [T]: True exactly on the tokens that train, sampled or of a reference answer."""
    rollout_log_probs: np.ndarray = field(metadata=column(np.float32, fill=np.nan))
    """float32 [T], nats, after temperature and penalties, over the whole vocabulary; NaN where not sampled."""
    kept_log_mass: np.ndarray = field(metadata=column(np.float32))
    """float32 [T]: log mass of the ids that could be drawn; 0 without truncation or where not sampled."""
    weight_version: np.ndarray = field(metadata=column(np.int32, fill=-1))
    """int32 [T]: version of the weights that sampled the token; -1 where not sampled."""
    kept_sets: Ragged | None = field(
        default=None,
        metadata=column(np.int32, is_ragged=True, is_optional=True),
    )
    """int32 lists: the ids that could be drawn, in rising order, including the drawn one. Empty where not sampled or
    where the whole vocabulary could be drawn. None: not recorded."""
    routes: np.ndarray | None = field(
        default=None,
        metadata=column(np.uint8, np.uint16, axes=("layer", "choice"), is_optional=True),
    )
    """uint8 or uint16 [T, L, k], the smaller type that holds the model's expert ids: the experts that computed each
    token's hidden state, which predicts the next token. Rows from the last sampled token on have no meaning, because
    no draw used them. None: a dense model, or not recorded."""
    group_id: str
    """Shared by the samples of one prompt; advantages are computed within it."""
    rollout_id: str
    temperature: float = 1.0
    """Sampling temperature; log-probs are comparable only at equal temperatures."""
    turns: tuple[Turn, ...] = ()
    """In order and disjoint, with the environment's tokens between them."""
    outcome: Outcome = Outcome.COMPLETED
    outcome_detail: str = ""
    """What failed, when the outcome is a failure."""
    reward: float | None = None
    """None until scored, and always None if the outcome is a failure. Of a demonstration: None, or where answers are
    compared 1 for the preferred one and 0 for the other."""
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    teacher_prompt_ids: tuple[int, ...] | None = None
    """What a teacher reads in place of the prompt, if it has a hint for this sample."""
    text: str = ""
    """The policy's text, decoded for people and verifiers; never tokenised again."""

    def __post_init__(self) -> None:
        for declared in SAMPLE_COLUMNS:
            values = getattr(self, declared.name)
            if values is None and declared.is_optional:
                continue
            try:
                object.__setattr__(self, declared.name, declared.declared(values))
            except DataError as error:
                msg = f"rollout {self.rollout_id}: {error}"
                raise DataError(msg) from None
        self._check()

    def _check(self) -> None:
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) != 1:
            msg = f"rollout {self.rollout_id}: columns differ in length: {lengths}; give every column one entry per token"
            raise DataError(msg)
        for what, (where, remedy) in self._problems().items():
            if where.any():
                at = int(np.flatnonzero(where)[0])
                msg = f"rollout {self.rollout_id}: {what} (first at position {at}: id {self.token_ids[at]}, log-prob {self.rollout_log_probs[at]}); {remedy}"
                raise DataError(msg)
        self._check_turns()
        if self.reward is not None and not (self.outcome.is_valid and np.isfinite(self.reward)):
            msg = f"rollout {self.rollout_id}: reward {self.reward} with outcome {self.outcome} is not allowed: only a completed or truncated rollout has a reward, which must be finite; leave the reward None"
            raise DataError(msg)

    def _problems(self) -> dict[str, tuple[np.ndarray, str]]:
        """By fault: where it occurs, bool [T], and what to do about it."""
        is_demonstration = self.source == Source.DEMONSTRATION
        is_sampled = self.weight_version >= 0
        may_train = is_demonstration | ((self.source == Source.POLICY) & is_sampled)
        has_log_prob = ~np.isnan(self.rollout_log_probs)
        return {
            "a token of a reference answer with a weight version": (
                is_demonstration & is_sampled,
                "it was not sampled, so give it version -1; a sampled token has source POLICY",
            ),
            "loss_mask on a token that the policy did not sample": (
                self.loss_mask & ~may_train,
                "only sampled tokens and reference answers (source DEMONSTRATION) train; set its mask to False",
            ),
            "a sampled token without a finite rollout log-prob": (
                is_sampled & ~np.isfinite(self.rollout_log_probs),
                "the loss needs it for the policy ratio; have the generator report log-probs",
            ),
            "a token that was not sampled but has a rollout log-prob": (
                ~is_sampled & has_log_prob,
                "set the log-prob to NaN, or give the version of the weights that sampled it",
            ),
            "a positive rollout log-prob": (
                is_sampled & (self.rollout_log_probs > 0),
                "a probability is at most 1; report log-probs in nats",
            ),
            "a negative token id": (self.token_ids < 0, "use ids of the model's tokenizer"),
            **({} if self.kept_sets is None else self._kept_set_problems(self.kept_sets)),
        }

    def _kept_set_problems(self, kept: Ragged) -> dict[str, tuple[np.ndarray, str]]:
        num_kept = np.diff(kept.offsets)
        is_sampled, row = self.weight_version >= 0, kept.row_of_value
        is_drawn = kept.values == self.token_ids[row]
        has_drawn = np.bincount(row[is_drawn], minlength=len(self)) > 0
        is_fall = (np.diff(kept.values) <= 0) & (np.diff(row) == 0)
        return {
            "a kept set on a token that was not sampled": (
                ~is_sampled & (num_kept > 0),
                "nothing was drawn there; give it an empty set",
            ),
            "a kept set without the drawn token": (
                is_sampled & ~has_drawn & ((num_kept > 0) | (self.kept_log_mass < 0)),
                "give every id that could be drawn, or leave kept_sets out",
            ),
            "ids of a kept set that are not in rising order": (
                np.bincount(row[1:][is_fall], minlength=len(self)) > 0,
                "sort them and remove duplicates",
            ),
        }

    def _check_turns(self) -> None:
        end = 0
        for turn in self.turns:
            source = self.source[turn.start : turn.end]
            is_written = (source == Source.POLICY) | (source == Source.DEMONSTRATION)
            if not (end <= turn.start <= turn.end <= len(self) and is_written.all()):
                msg = f"rollout {self.rollout_id}: turn [{turn.start}, {turn.end}) of {len(self)} tokens is not allowed: turns must be in order, disjoint, and hold only tokens of the policy or of a reference answer; correct its range or the tokens' source"
                raise DataError(msg)
            end = turn.end

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def columns(self) -> dict[str, Values]:
        """Values by name, without optional columns that are absent."""
        found = {column.name: getattr(self, column.name) for column in SAMPLE_COLUMNS}
        return {name: values for name, values in found.items() if values is not None}

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that train."""
        return int(self.loss_mask.sum())

    @property
    def is_demonstration(self) -> bool:
        """Whether it is a reference answer: not sampled, so without gap and staleness."""
        return bool((self.source == Source.DEMONSTRATION).any())

    @property
    def num_prompt_tokens(self) -> int:
        """Leading tokens with source PROMPT."""
        other = np.flatnonzero(self.source != Source.PROMPT)
        return int(other[0]) if len(other) else len(self)

    @property
    def num_completion_tokens(self) -> int:
        """Tokens of the policy, in all turns, or of a reference answer; none of the environment."""
        return int(np.isin(self.source, (Source.POLICY, Source.DEMONSTRATION)).sum())

    def version_spans(self, turn: Turn) -> tuple[WeightVersionSpan, ...]:
        """Which weights sampled which tokens of a turn, counted from its start; version -1: not sampled."""
        versions = self.weight_version[turn.start : turn.end]
        ends = [*(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
        return tuple(
            WeightVersionSpan(int(versions[start]), start, end)
            for start, end in itertools.pairwise([0, *ends])
            if start < end
        )

    @classmethod
    def of_prompt(
        cls, prompt_ids: Sequence[int] | np.ndarray, *, group_id: str, rollout_id: str, temperature: float = 1.0
    ) -> Sample:  # fmt: skip
        """A sample with its prompt and no turn yet."""
        ids = np.asarray(prompt_ids, np.int64)
        filled: dict[str, Any] = {
            column.name: column.filled(len(ids))
            for column in SAMPLE_COLUMNS
            if not column.is_optional
        }
        names = {"group_id": group_id, "rollout_id": rollout_id, "temperature": temperature}
        return cls(**filled | {"token_ids": ids, "source": np.full(len(ids), Source.PROMPT)}, **names)  # fmt: skip

    @classmethod
    def from_output(cls, output: GenerateOutput, *, group_id: str, temperature: float) -> Sample:
        """The sample of a prompt and its first turn, not yet scored."""
        prompt = cls.of_prompt(
            output.prompt_ids,
            group_id=group_id,
            rollout_id=f"{group_id}/{output.index}",
            temperature=temperature,
        )
        return prompt.append_output(output)

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
    ) -> Sample:
        """A reference answer: its tokens train, though no policy sampled them.

        Args:
            prompt_ids: the prompt as the policy would get it.
            answer_ids: the answer, with the token that ends it.
            group_id: of the prompt.
            rollout_id: unique in the step.
            reward: None, or where answers are compared 1 for the preferred one and 0 for the other.
            text: the answer, for people.

        Raises:
            DataError: the answer has no token.
        """
        if not len(answer_ids):
            msg = f"rollout {rollout_id}: a reference answer without tokens cannot be trained on; give at least the token that ends it"
            raise DataError(msg)
        prompt = cls.of_prompt(prompt_ids, group_id=group_id, rollout_id=rollout_id)
        end = FinishReason("stop", matched=answer_ids[-1])
        answered = prompt.append(
            answer_ids, source=Source.DEMONSTRATION, finish_reason=end, loss_mask=True
        )
        return replace(answered, reward=reward, text=text)

    def append_output(self, output: GenerateOutput) -> Sample:
        """This sample with one more turn, which an engine generated after all tokens so far.

        The output's prompt is this whole sample, so sampled ids are never encoded again. Outcome and text are updated
        and the reward is reset; an aborted turn fails the sample.

        Raises:
            DataError: the sample has failed, the output continues other ids, or its columns contradict each other.
        """
        if not self.outcome.is_valid:
            msg = f"rollout {self.rollout_id} has failed ({self.outcome}: {self.outcome_detail}), so it cannot have a further turn; keep it as it is"
            raise DataError(msg)
        if not np.array_equal(output.prompt_ids, self.token_ids):
            msg = f"rollout {self.rollout_id}: the turn does not continue this sample: its {len(output.prompt_ids)} prompt ids are not the sample's {len(self)} token ids; have the generator continue sample.token_ids"
            raise DataError(msg)
        reason, num_new = output.finish_reason, len(output.output_ids)
        is_aborted = reason.kind == "abort"
        outcome = Outcome.TRUNCATED if reason.kind == "length" else Outcome.COMPLETED
        columns = self._extended(
            num_new,
            token_ids=output.output_ids,
            source=Source.POLICY,
            loss_mask=True,
            rollout_log_probs=output.output_log_probs,
            kept_log_mass=output.kept_log_mass,
            weight_version=output.weight_version,
            kept_sets=output.kept_sets,
        )
        if is_aborted:
            columns["loss_mask"] = np.zeros(len(self) + num_new, bool)
        return replace(
            self,
            **columns | {"routes": self._routes_with(output)},
            turns=self._turns_with(num_new, reason, output.seed),
            outcome=Outcome.ABORTED if is_aborted else outcome,
            outcome_detail=reason.message or "",
            reward=None,
            reward_parts={},
            text=self.text + (output.text or ""),
        )

    def _routes_with(self, output: GenerateOutput) -> np.ndarray | None:
        """Earlier draws keep the rows they used; the output gives the rows after them."""
        drawn = np.flatnonzero(self.weight_version >= 0)
        if self.routes is None and output.routes is None:
            return None
        if output.routes is None or (self.routes is None and len(drawn)):
            who = "an earlier turn" if output.routes is None else "this turn"
            msg = f"rollout {self.rollout_id}: only {who} has routes; sample every turn with a generator that records them, or none"
            raise DataError(msg)
        routes = _COLUMN["routes"]
        given, num_tokens = routes.declared(output.routes), len(self) + len(output.output_ids)
        if len(given) != max(0, num_tokens - 1):
            msg = f"rollout {self.rollout_id}: {len(given)} rows of routes do not fit {num_tokens} tokens of prompt and completion; give one row for every token but the last"
            raise DataError(msg)
        known = int(drawn[-1]) if len(drawn) else 0
        own = [] if self.routes is None else [self.routes[:known]]
        unused = routes.filled(num_tokens - len(given), like=given)
        return routes.joined([*own, given[known:], unused])  # type: ignore[return-value]

    def append(
        self,
        token_ids: Sequence[int] | np.ndarray,
        *,
        source: Source | np.ndarray,
        finish_reason: FinishReason | None = None,
        seed: int = 0,
        **columns: Any,  # noqa: ANN401 - arrays, lists, Ragged or one number
    ) -> Sample:
        """This sample with more tokens.

        Args:
            token_ids: the new tokens.
            source: who wrote them; all of them, or each.
            finish_reason: why they ended, if they are a turn.
            seed: of the turn's sampling noise.
            **columns: rows of the new tokens by column, or one number for all of them; other columns get their fill
                value (not sampled, does not train).

        Raises:
            DataError: the columns contradict each other.
        """
        num_new = len(token_ids)
        turns = self.turns if finish_reason is None else self._turns_with(num_new, finish_reason, seed)  # fmt: skip
        grown = self._extended(num_new, token_ids=token_ids, source=source, **columns)
        return replace(self, **grown, turns=turns)

    def _extended(self, num_new: int, **given: object) -> dict[str, Any]:
        """Every column with ``num_new`` more tokens."""
        if unknown := given.keys() - _COLUMN.keys():
            msg = f"a sample has no columns {sorted(unknown)}; use {list(_COLUMN)}"
            raise TypeError(msg)
        return {
            column.name: column.extended(
                getattr(self, column.name), len(self), given.get(column.name), num_new
            )
            for column in SAMPLE_COLUMNS
        }

    def _turns_with(self, num_new: int, reason: FinishReason, seed: int) -> tuple[Turn, ...]:
        turn = Turn(start=len(self), end=len(self) + num_new, finish_reason=reason, seed=seed)
        return (*self.turns, turn)

    def with_prompt(self, prompt_ids: Sequence[int]) -> Sample:
        """The tokens after the prompt, with what is known of each, behind another prompt. Without turns, kept sets and routes."""
        start = self.num_prompt_tokens
        kept: dict[str, Any] = {
            column.name: self.columns[column.name][start:]
            for column in SAMPLE_COLUMNS
            if not column.is_optional and column.name not in ("token_ids", "source")
        }
        prompt = Sample.of_prompt(prompt_ids, group_id=self.group_id, rollout_id=self.rollout_id, temperature=self.temperature)  # fmt: skip
        return prompt.append(self.token_ids[start:], source=self.source[start:], **kept)

    def slice(self, start: int, end: int) -> Sample:
        """Tokens ``[start, end)`` with all their columns; turns are cut to this range."""
        start, end, _ = slice(start, end).indices(len(self))
        columns: dict[str, Any] = {name: values[start:end] for name, values in self.columns.items()}
        cut = (
            replace(turn, start=max(turn.start, start) - start, end=min(turn.end, end) - start)
            for turn in self.turns
            if turn.start < end and start < turn.end
        )
        return replace(self, **columns, turns=tuple(cut))

    def truncate(self, length: int) -> Sample:
        """The first ``length`` tokens."""
        return self.slice(0, length)

    def failed(self, outcome: Outcome, detail: str) -> Sample:
        """This sample with an invalid outcome, without a reward, and with no token that trains."""
        return replace(
            self,
            outcome=outcome,
            outcome_detail=detail,
            reward=None,
            loss_mask=np.zeros(len(self), bool),
        )

    def masked(self) -> Sample:
        """This sample with no token that trains. Its outcome and its reward stay, so it counts in its group."""
        return replace(self, loss_mask=np.zeros(len(self), bool))

    def scored(self, reward: float, parts: Mapping[str, float] | None = None) -> Sample:
        """This sample with its reward."""
        return replace(self, reward=float(reward), reward_parts=dict(parts or {}))


SAMPLE_COLUMNS = columns_of(Sample)
"""The declared columns of a sample."""
_COLUMN = {column.name: column for column in SAMPLE_COLUMNS}


@dataclass(frozen=True, kw_only=True)
class Group:
    """The samples of one prompt. Members are found by ``group_id``, never by their place in a list."""

    group_id: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        strangers = [s.rollout_id for s in self.samples if s.group_id != self.group_id]
        if strangers:
            msg = f"group {self.group_id} was given samples of other groups: {strangers}; put each into the group that its group_id names"
            raise DataError(msg)
