"""A generator without a model: what it answers is a function of the prompt, the seed and the sibling."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from zerogap.types import (
    Capability,
    CompletionUpdate,
    FinishReason,
    GenerateOutput,
    GenerateRequest,
)

Completion = Callable[[GenerateRequest, int], Sequence[int]]


def letters(request: GenerateRequest, index: int) -> list[int]:
    """Four lower-case letters that the seed and the sibling fix, then the byte tokenizer's end (257)."""
    seed = request.sampling_params.sampling_seed
    drawn = np.random.default_rng([seed, index]).integers(97, 123, size=4)
    return [*map(int, drawn), 257]


@dataclass
class FakeGenerator:
    """Satisfies ``rollout.Generator``. ``change`` may replace an output, or drop it by returning None."""

    completion: Completion = letters
    change: Callable[[GenerateOutput], GenerateOutput | None] = lambda output: output
    shuffle: bool = False
    capabilities: frozenset[Capability] = frozenset(Capability)
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)

    async def submit(
        self, request, *, with_progress=False
    ) -> AsyncGenerator[CompletionUpdate, None]:
        self.requests.append(request)
        made = [self.change(self._output(request, i)) for i in range(request.sampling_params.n)]
        outputs = [output for output in made if output is not None]
        if self.shuffle:
            order = np.random.default_rng(0).permutation(len(outputs))
            outputs = [outputs[k] for k in order]
        for output in outputs:
            yield CompletionUpdate.ended(output)

    async def abort(self, rid) -> None:
        self.aborted.append(rid)

    def _output(self, request: GenerateRequest, index: int) -> GenerateOutput:
        ids = np.array(self.completion(request, index), np.int32)
        return GenerateOutput(
            rid=request.rid,
            index=index,
            prompt_ids=np.array(request.input_ids, np.int32),
            output_ids=ids,
            output_log_probs=np.full(len(ids), -1.5, np.float32),
            kept_log_mass=np.zeros(len(ids), np.float32),
            finish_reason=FinishReason("stop", matched=257),
            weight_version=np.full(len(ids), 3, np.int32),
            seed=request.sampling_params.sampling_seed,
            text=bytes(i for i in ids if i < 128).decode(),
        )
