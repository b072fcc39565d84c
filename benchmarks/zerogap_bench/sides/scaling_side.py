"""Measures zerogap's decoding by number of sequences and context length. Runs in a worker process."""

from time import perf_counter

from zerogap.config.engine import EngineConfig
from zerogap.config.model import ModelSection
from zerogap.engine import Engine
from zerogap.kernels import PAGE_SIZE
from zerogap.run import load_policy, settle_numerics
from zerogap.types import GenerateRequest, SamplingParams
from zerogap_bench.machine import resident_bytes
from zerogap_bench.prepare import Prepared
from zerogap_bench.records import ScalingCell

_MEASURABLE_TOKENS = 2000
"""With fewer tokens, rounding and reuse by the allocator hide the growth of memory."""


class Scaling:
    """Builds a new engine for each cell, so that its memory belongs to the cell."""

    def __init__(self, *, prepared: Prepared) -> None:
        self._prepared = prepared
        self._policy = load_policy(ModelSection(path=prepared.model), seed=0)
        settle_numerics(self._policy, "exact", engine_rows=64, trainer_rows=1024)

    def measure(
        self, *, num_sequences: int, group_size: int, context: int, new_tokens: int, repeats: int
    ) -> ScalingCell:
        """Decode ``new_tokens`` tokens per sequence after a cached prompt of ``context`` tokens.

        Args:
            num_sequences: decoded together.
            group_size: sequences that share a prompt; divides ``num_sequences``.
            context: tokens of a prompt.
            new_tokens: timed decode steps.
            repeats: number of timings.
        """
        num_groups = num_sequences // group_size
        answers = num_sequences * (new_tokens + 1 + 2 * PAGE_SIZE)
        limits = EngineConfig(
            # The pages of all answers and prompts fit, so no prompt is evicted.
            kv_cache_tokens=num_groups * (context + PAGE_SIZE) + (repeats + 2) * answers,
            max_running=num_sequences,
            max_scheduled_tokens=max(1024, num_sequences),
        )
        engine = self._policy.engine(limits)
        prompts = [self._prompt(group, context) for group in range(num_groups)]
        # Two halves: the first allocates all buffers, so the second grows memory only by keys and values.
        half = context // 2
        prefill_s = _generate(engine, [ids[:half] for ids in prompts], n=1, max_new_tokens=1)
        before = resident_bytes()
        prefill_s += _generate(engine, prompts, n=1, max_new_tokens=1)
        after = resident_bytes()
        seconds = []
        for _ in range(repeats):
            # Both runs do the same work except the steps in between; recomputing the last page of the prompts cancels out.
            first_s = _generate(engine, prompts, n=group_size, max_new_tokens=1)
            all_s = _generate(engine, prompts, n=group_size, max_new_tokens=1 + new_tokens)
            seconds.append((all_s - first_s) / new_tokens)
        num_tokens, grown = num_groups * (context - half), None
        if before is not None and after is not None and num_tokens >= _MEASURABLE_TOKENS:
            grown = after - before
        return ScalingCell(
            num_sequences=num_sequences,
            group_size=group_size,
            context=context,
            prefill_tokens_per_s=num_groups * context / prefill_s,
            seconds_per_step=tuple(seconds),
            bytes_per_context_token=None if grown is None else grown / num_tokens,
        )

    def _prompt(self, group: int, context: int) -> tuple[int, ...]:
        """``context`` ids whose first id is unique to the group: groups must not share a prefix."""
        texts = self._prepared.prompt_ids
        ids = [group % self._prepared.shape.vocab_size]
        for text in range(group, group + context):
            if len(ids) >= context:
                break
            ids += texts[text % len(texts)]
        return tuple(ids[:context])


def _generate(
    engine: Engine, prompts: list[tuple[int, ...]], *, n: int, max_new_tokens: int
) -> float:
    """Seconds of the generation."""
    params = SamplingParams(n=n, max_new_tokens=max_new_tokens, ignore_eos=True, temperature=1.0)
    requests = [GenerateRequest(input_ids=ids, sampling_params=params) for ids in prompts]
    start_s = perf_counter()
    engine.generate(requests)
    return perf_counter() - start_s
