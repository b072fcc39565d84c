"""A runner without a model: what it draws is a hash of the ids it finds in the pages.

A page that is lost, shared wrongly, copied too late or overwritten changes what is read, hence what is
drawn, and ``expected_tokens`` says without any pages what had to be drawn.
"""

import hashlib

import numpy as np
import torch

from zerogap.engine import EngineCore, Limits, StepResult
from zerogap.engine.batch import Batch
from zerogap.engine.prefix_cache import BASE_WEIGHTS
from zerogap.kernels import PAGE_SIZE

VOCAB = 200
EOS = 0


def expected_draw(token_ids: np.ndarray, seed: int, index: int) -> int:
    """The id drawn after these ids; end of sequence about one time in 100."""
    return int(_digest(token_ids, seed, index) % (VOCAB // 2)) if len(token_ids) else 1


def expected_tokens(prompt_ids, seed: int, index: int, max_new_tokens: int) -> list[int]:
    """What an undisturbed sequence draws, the end-of-sequence id included."""
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(expected_draw(np.array(ids), seed, index))
        if ids[-1] == EOS:
            break
    return ids[len(prompt_ids) :]


class FakeRunner:
    """Pages hold (token id, position, weight version) in place of keys and values."""

    def __init__(self, num_pages: int) -> None:
        self.weight_version = 0
        self.num_rows = 0
        self.namespace = lambda: 0
        """The cache's present namespace: its sequences share pages, so none may be of other weights."""
        self._slots = np.full((num_pages * PAGE_SIZE, 3), -1, np.int64)

    def run(self, batch: Batch) -> StepResult:
        pages = self._slots.reshape(-1, PAGE_SIZE, 3)
        if batch.page_copies:
            source, target = np.array(batch.page_copies).T
            pages[target] = pages[source]
        used = batch.rows.write_slot_W >= 0
        slots, rows = batch.rows.write_slot_W[used], batch.rows.write_row_W[used]
        assert len(set(slots)) == used.sum(), "two rows write to one slot"
        is_real = batch.rows.row_position_T >= 0
        assert set(rows) == set(np.flatnonzero(is_real)), "a row is written nowhere"
        self.num_rows += int(is_real.sum())
        self._slots[slots] = np.stack(
            [
                batch.rows.token_ids_T[rows],
                batch.rows.row_position_T[rows],
                np.full(used.sum(), self.weight_version),
            ],
            axis=1,
        )
        drawn = [
            self._draw(batch, sequence, int(row))
            for sequence, row in zip(batch.draws.sequences, batch.draws.row_R, strict=True)
        ]
        tokens = np.array([token for token, _ in drawn], np.int64)
        for (_, hidden), first in zip(drawn, batch.draws.same_R, strict=True):
            assert hidden == drawn[first][1], "two draws are said to be from one hidden state"
        return StepResult(
            token_R=tokens,
            log_prob_R=-(tokens + 1).astype(np.float32),
            kept_log_mass_R=np.zeros(len(tokens), np.float32),
            hidden_RD=torch.tensor([hidden for _, hidden in drawn], dtype=torch.int64).reshape(
                -1, 1
            ),
            score_log_prob_Q=-batch.scores.target_Q.astype(np.float32) - 1,
        )

    def keys(self, sequence) -> np.ndarray:
        """What stands in for keys and values on a sequence's pages: [num_computed, 3]."""
        positions = np.arange(sequence.num_computed)
        pages = sequence.pages.astype(np.int64)[positions // PAGE_SIZE]
        return self._slots[pages * PAGE_SIZE + positions % PAGE_SIZE]

    def clear(self) -> None:
        self._slots[:] = -1

    def _draw(self, batch: Batch, sequence, row: int) -> tuple[int, int]:
        """(token, hidden state) of a drawing sequence; row -1 draws from a sibling's hidden state."""
        rows = batch.rows
        if row < 0:
            self._read(sequence, sequence.pages, sequence.num_prompt - 1)
            prefix = int(sequence.prompt_hidden_D)
        else:
            table = rows.page_table_BP[rows.row_sequence_T[row]]
            prefix = _prefix_digest(self._read(sequence, table, int(rows.row_position_T[row])))
        return int(_mix(prefix, sequence.seed, sequence.index) % (VOCAB // 2)), prefix

    def _read(self, sequence, table: np.ndarray, position: int) -> np.ndarray:
        """The ids up to a position, through the page table."""
        positions = np.arange(position + 1)
        pages = table.astype(np.int64)[positions // PAGE_SIZE]
        seen = self._slots[pages * PAGE_SIZE + positions % PAGE_SIZE]
        assert (seen[:, 1] == positions).all(), f"{sequence.rid}: positions {seen[:, 1]}"
        if sequence.namespace == self.namespace():
            assert (seen[:, 2] == self.weight_version).all(), (
                f"{sequence.rid} shares pages and has versions {seen[:, 2]}, now {self.weight_version}"
            )
        return seen[:, 0]


def fake_engine(
    *,
    num_pages: int = 64,
    max_running: int = 8,
    max_scheduled_tokens: int = 64,
    prefix_cache: bool = True,
    detokenizer=None,
    weights=frozenset({BASE_WEIGHTS}),
) -> tuple[EngineCore, FakeRunner]:
    """An engine core over a fake runner."""
    runner = FakeRunner(num_pages)
    limits = Limits(
        vocab_limit=VOCAB,
        max_positions=10_000,
        num_pages=num_pages,
        eos_token_ids=frozenset({EOS}),
        detokenizer=detokenizer,
        weights=weights,
    )
    core = EngineCore(
        runner,
        limits,
        max_running=max_running,
        max_scheduled_tokens=max_scheduled_tokens,
        prefix_cache=prefix_cache,
        weight_version=0,
        seed=0,
    )
    runner.namespace = lambda: core._scheduler._cache.namespace
    return core, runner


def run_until_idle(core: EngineCore, *, max_steps: int = 20_000) -> list:
    """Step until nothing is left; the outputs in order of ending."""
    outputs = []
    for _ in range(max_steps):
        outputs += core.step()
        if core.is_idle:
            return outputs
    raise AssertionError(f"not idle after {max_steps} steps")


def _digest(token_ids: np.ndarray, seed: int, index: int) -> int:
    return _mix(_prefix_digest(token_ids), seed, index)


def _prefix_digest(token_ids: np.ndarray) -> int:
    raw = np.asarray(token_ids, np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=7).digest(), "big")


def _mix(prefix: int, seed: int, index: int) -> int:
    # Neighbours draw alike, most of the time: siblings that draw the same tokens share rows.
    family = index if prefix % 16 == 0 else index // 2
    raw = f"{prefix}/{seed}/{family}".encode()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=7).digest(), "big")
