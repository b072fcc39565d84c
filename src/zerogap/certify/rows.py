"""Promise 2: log-probs are batch-invariant, and the same from engine and trainer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.certify.finding import Finding
from zerogap.types import GenerateOutput, Sample


@dataclass(frozen=True)
class Reported:
    """Ids and log-probs of all completions, in a fixed order, as one variant computed them."""

    ids: tuple[np.ndarray, ...]
    """int32 [C] each."""
    log_probs: tuple[np.ndarray, ...]
    """float32 [C] each, aligned."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all completions."""
        return sum(map(len, self.ids))

    @classmethod
    def of_outputs(cls, outputs: Sequence[GenerateOutput]) -> "Reported":
        """From the engine's outputs, in any order."""
        ordered = sorted(outputs, key=lambda output: (output.rid, output.index))
        return cls(tuple(o.output_ids for o in ordered), tuple(o.output_log_probs for o in ordered))

    @classmethod
    def of_scores(cls, samples: Sequence[Sample], scores: Sequence[np.ndarray]) -> "Reported":
        """From scores, one column per sample."""
        is_sampled = [sample.weight_version >= 0 for sample in samples]
        pairs = list(zip(samples, scores, is_sampled, strict=True))
        return cls(
            tuple(sample.token_ids[where] for sample, _, where in pairs),
            tuple(column[where] for _, column, where in pairs),
        )


def check_rows(
    reference: Reported, variants: Mapping[str, Callable[[], Reported]], *, cure: str
) -> Finding:
    """Compute the same tokens in every variant, and compare bits.

    Args:
        reference: reported by the engine.
        variants: name -> computes the same completions in another way.
        cure: what to do if one differs.
    """
    wrong = []
    for name, compute in variants.items():
        if difference := differences(compute(), reference):
            wrong.append(f"{name}: {difference}")
    if wrong:
        return Finding(is_kept=False, figure="; ".join(wrong), cure=cure)
    return Finding(is_kept=True, figure=f"{reference.num_tokens} tokens, {len(variants)} other ways to compute them: largest difference 0.0")  # fmt: skip


def differences(ours: Reported, reference: Reported) -> str:
    """The differences as text; empty if there are none."""
    same_ids = [np.array_equal(a, b) for a, b in zip(ours.ids, reference.ids, strict=True)]
    if not all(same_ids):
        return f"different tokens in {same_ids.count(False)} of {len(same_ids)} completions"
    found, expected = np.concatenate(ours.log_probs), np.concatenate(reference.log_probs)
    differs = ~(found == expected)
    if not differs.any():
        return ""
    largest = np.abs(found.astype(np.float64) - expected).max()
    return f"{int(differs.sum())} of {len(found)} log-probs differ, by up to {largest:.3g} nats"
