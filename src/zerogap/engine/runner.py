"""The part of the engine that computes: KV cache tensors, the model's forward pass, and the draw.

Goes in: a ``Batch``. Comes out: a ``StepResult``. It keeps no state besides the cache's contents, and
knows nothing of requests.

Letters: L layers, P pages, K key/value heads, H head dim, S slots a page, N query heads; and the
batch's T, R and Q.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from zerogap.engine.batch import Batch
from zerogap.kernels import (
    PAGE_SIZE,
    AttentionPlan,
    LogitsBuffer,
    log_probs,
    paged_attention,
    sample_tokens,
    write_kv,
)
from zerogap.models import CausalLM


@dataclass(frozen=True)
class StepResult:
    """What a step computed, in the batch's order."""

    token_R: np.ndarray
    """int64 drawn ids"""
    log_prob_R: np.ndarray
    """float32, nats, whole vocabulary"""
    kept_log_mass_R: np.ndarray
    """float32, log mass of what could be drawn"""
    hidden_RD: Tensor
    """Hidden states that were drawn from."""
    score_log_prob_Q: np.ndarray
    """float32"""


class Runner(Protocol):
    """Computes steps and owns the contents of the pages."""

    def run(self, batch: Batch) -> StepResult:
        """Copy pages, compute the rows and write their keys and values, draw and score."""
        ...

    def clear(self) -> None:
        """Forget the contents of every page."""
        ...


class PagedAttention:
    """The model's ``Attention`` over KV cache pages, for the rows of one step."""

    def __init__(
        self, k_LPKHS: Tensor, v_LPKSH: Tensor, plan: AttentionPlan, slots_T: Tensor, scale: float
    ) -> None:
        self._k, self._v = k_LPKHS, v_LPKSH
        self._plan, self._slots_T, self._scale = plan, slots_T, scale

    def __call__(self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """Write the rows' keys and values, then let each row read its own sequence."""
        k_PKHS, v_PKSH = self._k[layer], self._v[layer]
        write_kv(k_TKH, v_TKH, self._slots_T, k_PKHS, v_PKSH)
        return paged_attention(q_TNH, k_PKHS, v_PKSH, self._plan, scale=self._scale)


class ModelRunner:
    """Runs a ``CausalLM`` whose parameters may be the trainer's own: they are read, never copied."""

    def __init__(self, model: CausalLM, *, num_pages: int, vocab_limit: int) -> None:
        config = model.config
        self._model = model
        self._scale = config.attention_scale
        self._vocab_limit = vocab_limit
        self._device = model.head_weight.device
        heads, size = config.num_kv_heads, config.head_dim
        # Zeros, not empty: slots past a row's position enter a product with weight 0, and 0 * NaN is NaN.
        self._k_LPKHS = self._cache(config.num_layers, num_pages, heads, size, PAGE_SIZE)
        self._v_LPKSH = self._cache(config.num_layers, num_pages, heads, PAGE_SIZE, size)
        self._logits = LogitsBuffer()

    @property
    def kv_cache_bytes(self) -> int:
        """Size of keys and values together."""
        return self._k_LPKHS.nbytes + self._v_LPKSH.nbytes

    @torch.no_grad()
    def run(self, batch: Batch) -> StepResult:
        """One forward pass, one draw."""
        self._copy_pages(batch.page_copies)
        hidden_TD = self._forward(batch)
        hidden_RD = self._hidden_to_draw(hidden_TD, batch)
        head_VD = self._model.head_weight
        tokens = log_prob = kept = torch.zeros(0)
        if batch.drawing:
            tokens, log_prob, kept = sample_tokens(
                hidden_RD,
                head_VD,
                batch.sampling,
                vocab_limit=self._vocab_limit,
                buffer=self._logits,
            )
        scored = torch.zeros(0)
        if len(batch.score_row_Q):
            scored, _entropy = log_probs(
                hidden_TD[self._tensor(batch.score_row_Q)],
                head_VD,
                self._tensor(batch.score_target_Q),
                self._tensor(batch.score_temperature_Q),
                vocab_limit=self._vocab_limit,
            )
        return StepResult(
            token_R=tokens.numpy(force=True),
            log_prob_R=log_prob.numpy(force=True),
            kept_log_mass_R=kept.numpy(force=True),
            hidden_RD=hidden_RD,
            score_log_prob_Q=scored.numpy(force=True),
        )

    @torch.no_grad()
    def clear(self) -> None:
        """Zero every page, for when something that is not finite was written."""
        self._k_LPKHS.zero_()
        self._v_LPKSH.zero_()

    def _forward(self, batch: Batch) -> Tensor:
        if not len(batch.token_ids_T):
            return self._zeros(0, self._model.config.hidden_size)
        plan = AttentionPlan(
            self._tensor(batch.page_table_BP),
            self._tensor(batch.row_sequence_T),
            self._tensor(batch.row_position_T),
        )
        attention = PagedAttention(
            self._k_LPKHS, self._v_LPKSH, plan, self._tensor(batch.slots_T), self._scale
        )
        positions_T = self._tensor(np.maximum(batch.row_position_T, 0).astype(np.int64))
        return self._model(self._tensor(batch.token_ids_T), positions_T, attention)

    def _hidden_to_draw(self, hidden_TD: Tensor, batch: Batch) -> Tensor:
        is_forked_R = batch.draw_row_R < 0
        if not is_forked_R.any():
            return hidden_TD[self._tensor(batch.draw_row_R)]
        hidden_RD = hidden_TD.new_empty(len(batch.drawing), hidden_TD.shape[1])
        computed = np.flatnonzero(~is_forked_R)
        hidden_RD[self._tensor(computed)] = hidden_TD[self._tensor(batch.draw_row_R[computed])]
        for row in np.flatnonzero(is_forked_R).tolist():
            hidden_RD[row] = batch.drawing[row].prompt_hidden_D
        return hidden_RD

    def _copy_pages(self, copies: list[tuple[int, int]]) -> None:
        if copies:
            # All sources are read before any target is written.
            source, target = (
                self._tensor(np.array(pages, np.int64)) for pages in zip(*copies, strict=True)
            )
            self._k_LPKHS[:, target] = self._k_LPKHS[:, source]
            self._v_LPKSH[:, target] = self._v_LPKSH[:, source]

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _cache(self, *shape: int) -> Tensor:
        # numpy's zeros are pages that the system hands out when they are first written (torch.zeros writes them
        # all at once): a large cache costs the memory of what was used of it.
        return self._tensor(np.zeros(shape, np.float32))

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float32, device=self._device)
