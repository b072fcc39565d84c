"""How much time does a generated token take with few or many sequences, and with short or long contexts?

Only zerogap, and only decoding: prompts are in the prefix cache, and the time of a run with one new token is subtracted
from that of a longer run. Sequences come in groups that share a prompt and its keys and values, as in a rollout.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from zerogap_bench.flops import kv_bytes_per_token
from zerogap_bench.machine import available_bytes
from zerogap_bench.question import Setting
from zerogap_bench.records import ScalingCell
from zerogap_bench.tables import Table, spread
from zerogap_bench.workers import Worker

NEW_TOKENS = 16
_PROMPTS = 32
"""Number of different texts from which contexts are built."""
_MEMORY_SHARE = 0.6
"""Share of the available memory for keys and values of a cell; the rest is for weights and activations."""


class Scaling:
    """A cell for each number of sequences and each context length."""

    name = "scaling"

    def __init__(
        self,
        sequences: Sequence[int],
        contexts: Sequence[int],
        *,
        group_size: int,
        repeats: int,
        new_tokens: int = NEW_TOKENS,
    ) -> None:
        self._sequences, self._contexts = sorted(sequences), sorted(contexts)
        self._group_size, self._repeats, self._new_tokens = group_size, repeats, new_tokens
        self._cells: list[ScalingCell] = []
        self._notes: list[str] = []
        self._kv_bytes = 0
        self.failures: list[str] = []

    @property
    def num_prompts(self) -> int:
        """Enough for different contexts."""
        return _PROMPTS

    def measure(self, setting: Setting) -> None:
        """Measure all cells, short contexts first, because they are fast."""
        self._kv_bytes = kv_bytes_per_token(setting.prepared.shape)
        setting.say("scaling: starting zerogap")
        with Worker(
            "zerogap", "zerogap_bench.sides.scaling_side:Scaling",
            threads=setting.prepared.threads, prepared=setting.prepared,
        ) as side:  # fmt: skip
            for context in self._contexts:
                for num in self._sequences:
                    reason = self._why_not(num, context, setting.prepared.max_positions)
                    if reason is not None:
                        self._notes.append(f"{num} sequences, context {context}: {reason}")
                        continue
                    setting.say(f"scaling: {num} sequences, context {context}")
                    self._cells.append(
                        side.call(
                            "measure", num_sequences=num, group_size=min(self._group_size, num),
                            context=context, new_tokens=self._new_tokens, repeats=self._repeats,
                        )
                    )  # fmt: skip

    def tables(self) -> list[Table]:
        """A table with one row per cell."""
        if not self._cells:
            return []
        rows = [
            {
                "sequences": cell["num_sequences"],
                "context": cell["context"],
                "ms a step": cell["ms_per_step"]["median"],
                "ms a token": cell["ms_per_token"],
                "tokens/s": cell["tokens_per_s"],
                "prefill tokens/s": cell["prefill_tokens_per_s"],
                "kB a token of context": cell["measured_kb_per_context_token"],
            }
            for cell in self._results()
        ]
        notes = [
            f"groups of {self._group_size} share their prompt; keys and values take {self._kv_bytes / 1e3:.1f} kB a token",
            *self._notes,
        ]
        return [Table("Decoding by number of sequences and context", rows, notes)]

    def report(self) -> dict[str, Any]:
        """Every cell."""
        return {
            "cells": self._results(),
            "kv_bytes_per_token": self._kv_bytes,
            "group_size": self._group_size,
            "new_tokens": self._new_tokens,
            "notes": self._notes,
        }

    def _results(self) -> list[dict[str, Any]]:
        return [summarise_cell(cell) for cell in self._cells]

    def _why_not(self, num_sequences: int, context: int, max_positions: int) -> str | None:
        if context < 2:
            return "left out; a prompt is computed in two halves, so it needs at least 2 tokens"
        longest = context + self._new_tokens + 1
        if longest > max_positions:
            return f"left out; the model supports at most {max_positions} tokens"
        if num_sequences % min(self._group_size, num_sequences):
            return f"left out; not a whole number of groups of {self._group_size}"
        groups = num_sequences // min(self._group_size, num_sequences)
        needed = (groups * context + (self._repeats + 2) * num_sequences * (self._new_tokens + 32)) * self._kv_bytes  # fmt: skip
        available = available_bytes()
        if available is not None and needed > _MEMORY_SHARE * available:
            return f"left out; keys and values take {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB of memory are available"
        return None


def summarise_cell(cell: ScalingCell) -> dict[str, Any]:
    """A cell's numbers for a report."""
    step_s = median(cell.seconds_per_step)
    grown = cell.bytes_per_context_token
    return {
        "num_sequences": cell.num_sequences,
        "group_size": cell.group_size,
        "context": cell.context,
        "ms_per_step": spread([s * 1e3 for s in cell.seconds_per_step]),
        "ms_per_token": step_s * 1e3 / cell.num_sequences,
        "tokens_per_s": cell.num_sequences / step_s,
        "prefill_tokens_per_s": cell.prefill_tokens_per_s,
        "measured_kb_per_context_token": None if grown is None else grown / 1e3,
    }
