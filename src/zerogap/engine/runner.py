"""The part of the engine that computes: KV cache tensors, the model's forward pass, and the draw.

Goes in: a ``Batch``. Comes out: a ``StepResult``. Its state between steps is the contents of the cache; captured
graphs and the logits buffer only save time. It knows nothing of requests.

Letters: L layers, P pages, K key/value heads, H head dim, S slots a page, N query heads; and T, W, R and Q
as in ``batch``.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from zerogap.engine.batch import Batch, Draws, Rows, Scores
from zerogap.engine.graph_cache import GraphCache
from zerogap.engine.kv_memory import ForgettableZeros
from zerogap.engine.sampling import build_sampling_rows
from zerogap.errors import NumericsError
from zerogap.kernels import (
    PAGE_SIZE,
    AttentionPlan,
    Compute,
    Gemm,
    LogitsBuffer,
    log_probs,
    paged_attention,
    sample_tokens,
    to_device,
    to_host,
    write_kv,
)
from zerogap.models import CausalLM


@dataclass(frozen=True)
class StepResult:
    """What a step computed, in the batch's order."""

    token_R: np.ndarray
    """int64 drawn ids"""
    log_prob_R: np.ndarray
    """float32 log-probs of the drawn ids over the whole vocabulary, nats"""
    kept_log_mass_R: np.ndarray
    """float32 log mass of the ids that could be drawn"""
    hidden_RD: Tensor
    """The hidden states that the draws used."""
    score_log_prob_Q: np.ndarray
    """float32 log-probs of the scored tokens, nats"""


class Runner(Protocol):
    """Computes steps and owns the contents of the pages."""

    def run(self, batch: Batch) -> StepResult:
        """Copy pages, compute the rows and write their keys and values, draw and score.

        Raises:
            NumericsError: a log-prob is not finite. The contents of the pages are then unusable.
        """
        ...

    def clear(self) -> None:
        """Forget the contents of every page, and give back its memory until it is written again."""
        ...


@dataclass
class PagedAttention:
    """The model's ``Attention`` over KV cache pages, for the rows of one step."""

    k_LPKHS: Tensor
    v_LPKSH: Tensor
    plan: AttentionPlan
    slots_W: Tensor
    rows_W: Tensor
    scale: float

    def __call__(self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """Write the rows' keys and values, then let each row read its own sequence."""
        k_PKHS, v_PKSH = self.k_LPKHS[layer], self.v_LPKSH[layer]
        write_kv(k_TKH, v_TKH, self.slots_W, k_PKHS, v_PKSH, self.rows_W)
        return paged_attention(q_TNH, k_PKHS, v_PKSH, self.plan, scale=self.scale)


class ModelRunner:
    """Runs a ``CausalLM`` whose parameters may belong to the trainer: they are read, never copied."""

    def __init__(self, model: CausalLM, *, num_pages: int, gemm: Gemm = "exact") -> None:
        config, self._compute = model.config, Compute(gemm=gemm)
        self._model = model
        self._scale = config.attention_scale
        self._device = model.head_weight.device
        heads, size = config.num_kv_heads, config.head_dim
        pages, like = (config.num_layers, num_pages, heads), model.head_weight
        self._k_memory = ForgettableZeros((*pages, size, PAGE_SIZE), like=like)
        self._v_memory = ForgettableZeros((*pages, PAGE_SIZE, size), like=like)
        self._use_memory()
        self._logits = LogitsBuffer(self._device)
        self._graphs = GraphCache(model, self._compute)

    @torch.no_grad()
    def run(self, batch: Batch) -> StepResult:
        """As ``Runner.run``: one forward pass and one draw."""
        self._copy_pages(batch.page_copies)
        hidden_TD = self._forward(batch.rows)
        hidden_RD = self._hidden_to_draw(hidden_TD, batch.draws)
        drawn = self._draw(hidden_RD, batch.draws)
        score_log_prob_Q = self._score(hidden_TD, batch.scores)
        token_R, log_prob_R, kept_log_mass_R = map(to_host, drawn)
        result = StepResult(
            token_R, log_prob_R, kept_log_mass_R, hidden_RD, to_host(score_log_prob_Q)
        )
        _check_finite(result)
        return result

    def clear(self) -> None:
        """Zero every page."""
        self._k_memory.forget()
        self._v_memory.forget()
        self._use_memory()

    def _use_memory(self) -> None:
        self._k_LPKHS, self._v_LPKSH = self._k_memory.tensor, self._v_memory.tensor

    def _forward(self, rows: Rows) -> Tensor:
        if not len(rows.token_ids_T):
            return self._zeros(0, self._model.config.hidden_size)
        token_ids_T = self._tensor(rows.token_ids_T)
        slots_W, rows_W = self._tensor(rows.write_slot_W), self._tensor(rows.write_row_W)
        positions_T = self._tensor(np.maximum(rows.row_position_T, 0).astype(np.int64))
        seen_by = [
            self._tensor(rows.page_table_BP),
            self._tensor(rows.row_sequence_T),
            self._tensor(rows.row_position_T),
        ]

        num_keys = int(rows.row_position_T.max()) + 1

        def forward() -> Tensor:
            plan = AttentionPlan(*seen_by, num_keys=num_keys)
            attention = PagedAttention(
                self._k_LPKHS, self._v_LPKSH, plan, slots_W, rows_W, self._scale
            )
            return self._model(token_ids_T, positions_T, attention, compute=self._compute)

        inputs = [token_ids_T, positions_T, slots_W, rows_W, *seen_by]
        return self._graphs.forward(inputs, [self._k_LPKHS, self._v_LPKSH], forward)

    def _hidden_to_draw(self, hidden_TD: Tensor, draws: Draws) -> Tensor:
        """The hidden states to draw from; a sibling that forks a prompt brings its own along."""
        forked = np.flatnonzero(draws.row_R < 0)
        if not len(forked):
            return hidden_TD[self._tensor(draws.row_R)]
        computed = np.flatnonzero(draws.row_R >= 0)
        hidden_RD = hidden_TD.new_empty(len(draws.row_R), hidden_TD.shape[1])
        hidden_RD[self._tensor(computed)] = hidden_TD[self._tensor(draws.row_R[computed])]
        brought = [draws.sequences[row].prompt_hidden_D for row in forked]
        hidden_RD[self._tensor(forked)] = torch.stack([h for h in brought if h is not None])
        return hidden_RD

    def _draw(self, hidden_RD: Tensor, draws: Draws) -> tuple[Tensor, Tensor, Tensor]:
        if not len(hidden_RD):
            none = self._zeros(0)
            return none.long(), none, none
        # All draws from one hidden state share one row of logits.
        first_U, which_R = np.unique(draws.same_R, return_inverse=True)
        return sample_tokens(
            hidden_RD[self._tensor(first_U)],
            self._model.head,
            build_sampling_rows(draws.sequences, self._device),
            buffer=self._logits,
            which_R=self._tensor(which_R),
            compute=self._compute,
        )

    def _score(self, hidden_TD: Tensor, scores: Scores) -> Tensor:
        if not len(scores.row_Q):
            return self._zeros(0)
        log_prob_Q, _entropy_Q = log_probs(
            hidden_TD[self._tensor(scores.row_Q)],
            self._model.head,
            self._tensor(scores.target_Q),
            self._tensor(scores.temperature_Q),
            compute=self._compute,
        )
        return log_prob_Q

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            # Each assignment reads all sources before it writes a target.
            source, target = (
                self._tensor(np.array(pages, np.int64)) for pages in zip(*copies, strict=True)
            )
            self._k_LPKHS[:, target] = self._k_LPKHS[:, source]
            self._v_LPKSH[:, target] = self._v_LPKSH[:, source]

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device(array, self._device)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)


def _check_finite(result: StepResult) -> None:
    bad = np.flatnonzero(~np.isfinite(result.log_prob_R))
    if len(bad):
        msg = (
            f"row {bad[0]} of {len(result.log_prob_R)} has no finite log-prob: its logits hold NaN or infinity, or every id is "
            "banned; check the weights, the temperature and logit_bias"
        )
        raise NumericsError(msg)
    if not np.isfinite(result.score_log_prob_Q).all():
        msg = "a score is not finite: the weights hold NaN or infinity, or the temperature is too small"
        raise NumericsError(msg)
