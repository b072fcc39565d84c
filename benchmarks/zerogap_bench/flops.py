"""Model FLOPs: the FLOPs that the mathematics of a forward or training pass needs, independent of the implementation.

A multiply-add is 2 FLOPs. The count includes the GEMMs with parameters and the two GEMMs of attention. It excludes norms,
rotations, activations, softmax and sampling.

- body: 2 per parameter of qkv, o, gate-up and down, for every computed row.
- head: 2 per parameter of the language-model head, only for rows whose distribution is needed: rows that draw a token,
  or that predict a trained one.
- attention: 4 * N * H per layer for each (row, visible key) pair, with N query heads of size H: q.k and weight.v.

A training pass counts as three forward passes (one forward, two backward: for inputs and for weights), or as four for body
and attention if activations are recomputed. The head always counts three times: its logits are always recomputed, but only
to save memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerogap.models import ModelConfig


FLOAT_BYTES = 4


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense decoder, as plain numbers that can be sent to another process."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Columns of the head that are computed."""

    @classmethod
    def from_config(cls, config: "ModelConfig", *, vocab_size: int) -> "ModelShape":
        """The sizes of ``config``."""
        names = ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads")
        sizes = {name: getattr(config, name) for name in (*names, "head_dim")}
        return cls(**sizes, vocab_size=vocab_size)

    @property
    def layer_gemms(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each projection of one layer."""
        queries = self.num_heads * self.head_dim
        return {
            "qkv": (self.hidden_size, queries + 2 * self.num_kv_heads * self.head_dim),
            "o": (queries, self.hidden_size),
            "gate_up": (self.hidden_size, 2 * self.intermediate_size),
            "down": (self.intermediate_size, self.hidden_size),
        }

    @property
    def body_parameters(self) -> int:
        """Matrix parameters of all layers, without embedding and head."""
        return self.num_layers * sum(i * o for i, o in self.layer_gemms.values())

    @property
    def head_parameters(self) -> int:
        """Matrix parameters of the head, even if it is tied to the embedding."""
        return self.hidden_size * self.vocab_size


@dataclass(frozen=True)
class Work:
    """FLOPs by kind."""

    body: float
    head: float
    attention: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.body + self.head + self.attention

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.body + other.body, self.head + other.head, self.attention + other.attention
        )

    def scaled(self, factor: float) -> "Work":
        """Every kind times ``factor``."""
        return Work(factor * self.body, factor * self.head, factor * self.attention)


@dataclass(frozen=True)
class PromptWork:
    """One prompt and its answers, in tokens."""

    num_prompt: int
    num_cached: int
    """Leading prompt tokens that were already cached, because another prompt starts with the same tokens."""
    num_answers: tuple[int, ...]
    """Length of each answer."""


def keys_seen(begin: int, end: int) -> int:
    """Number of (row, visible key) pairs of the positions ``[begin, end)``: position p sees p + 1 keys."""
    return (end * (end + 1) - begin * (begin + 1)) // 2


def forward_work(shape: ModelShape, *, num_rows: int, num_head_rows: int, num_keys: int) -> Work:
    """The work of one forward pass; ``num_keys`` is the number of (row, visible key) pairs."""
    return Work(
        body=2.0 * shape.body_parameters * num_rows,
        head=2.0 * shape.head_parameters * num_head_rows,
        attention=4.0 * shape.num_heads * shape.head_dim * shape.num_layers * num_keys,
    )


def generation_work(
    shape: ModelShape,
    prompts: Sequence[PromptWork],
    *,
    num_rows: int | None = None,
    num_head_rows: int | None = None,
) -> Work:
    """The work of a rollout: each prompt once, and one row per drawn token, except the last of each answer.

    Args:
        shape: of the model.
        prompts: with their answers.
        num_rows: computed rows, if answers with the same first tokens share rows; body and attention are scaled in
            proportion. None: only prompts are shared.
        num_head_rows: hidden states from which tokens were drawn, if answers share them too. None: one per token.
    """
    whole = _forward_over(shape, prompts, skips_cached=True)
    share, head_share = 1.0, 1.0
    if num_rows is not None:
        share = min(1.0, num_rows / num_generation_rows(prompts))
    if num_head_rows is not None:
        head_share = min(1.0, num_head_rows / sum(sum(p.num_answers) for p in prompts))
    return Work(share * whole.body, head_share * whole.head, share * whole.attention)


def training_work(
    shape: ModelShape,
    prompts: Sequence[PromptWork],
    *,
    recompute: bool = False,
    num_distinct_rows: int | None = None,
) -> Work:
    """The work of training on all answers; each prompt is computed once for all its answers.

    Args:
        shape: of the model.
        prompts: with their answers.
        recompute: activations are recomputed in the backward pass.
        num_distinct_rows: distinct rows of the step, if answers with the same first tokens share rows: all work is
            scaled in proportion. None: only prompts are shared.
    """
    forward = _forward_over(shape, prompts, skips_cached=False)
    if num_distinct_rows is not None:
        forward = forward.scaled(min(1.0, num_distinct_rows / num_training_rows(prompts)))
    passes = 4 if recompute else 3
    return Work(passes * forward.body, 3 * forward.head, passes * forward.attention)


def conventional_flops(shape: ModelShape, *, num_tokens: int, factor: int) -> float:
    """``factor * N * tokens``, the usual count in papers: with the head for every token, without attention.

    Args:
        shape: of the model.
        num_tokens: tokens of all sequences; a shared prompt counts once per sequence.
        factor: 2 per generated or prefilled token, 6 per trained token, 8 with recomputation.
    """
    return float(factor) * (shape.body_parameters + shape.head_parameters) * num_tokens


def kv_bytes_per_token(shape: ModelShape) -> int:
    """Keys and values of one token in all layers, fp32."""
    return 2 * FLOAT_BYTES * shape.num_layers * shape.num_kv_heads * shape.head_dim


def decode_bytes(shape: ModelShape, *, num_prompt: int, num_answer: int) -> float:
    """Bytes read per decoded token of a single sequence: the mean over all steps except the first.

    A step reads every matrix once, including the head, and the keys and values of all earlier tokens. Writes do not count.

    Args:
        shape: of the model.
        num_prompt: tokens of the prompt.
        num_answer: tokens of the answer, at least 2, because the prefill produces the first one.
    """
    weights = FLOAT_BYTES * (shape.body_parameters + shape.head_parameters)
    keys = keys_seen(num_prompt, num_prompt + num_answer - 1) / (num_answer - 1)
    return weights + keys * kv_bytes_per_token(shape)


def num_training_rows(prompts: Sequence[PromptWork]) -> int:
    """Rows of a training pass that shares prompts. The last token of an answer needs no row: it predicts nothing."""
    return sum(p.num_prompt + sum(n - 1 for n in p.num_answers) for p in prompts)


def num_generation_rows(prompts: Sequence[PromptWork]) -> int:
    """Rows of a rollout that shares only prompts."""
    return sum(p.num_prompt - p.num_cached + sum(n - 1 for n in p.num_answers) for p in prompts)


def num_sequence_tokens(prompts: Sequence[PromptWork]) -> int:
    """Tokens of all sequences; a prompt counts once per answer."""
    return sum(len(p.num_answers) * p.num_prompt + sum(p.num_answers) for p in prompts)


def gemm_flops(shape: ModelShape, work: Work) -> Mapping[str, float]:
    """FLOPs of each GEMM with parameters: qkv, o, gate_up, down (over all layers) and head."""
    per_parameter = work.body / shape.body_parameters
    layers = {
        name: per_parameter * shape.num_layers * i * o for name, (i, o) in shape.layer_gemms.items()
    }
    return {**layers, "head": work.head}


def _forward_over(shape: ModelShape, prompts: Sequence[PromptWork], *, skips_cached: bool) -> Work:
    total = Work(0, 0, 0)
    for prompt in prompts:
        start = prompt.num_cached if skips_cached else 0
        end_of = [prompt.num_prompt + num - 1 for num in prompt.num_answers]
        total += forward_work(
            shape,
            num_rows=prompt.num_prompt - start + sum(end - prompt.num_prompt for end in end_of),
            num_head_rows=sum(prompt.num_answers),
            num_keys=keys_seen(start, prompt.num_prompt)
            + sum(keys_seen(prompt.num_prompt, end) for end in end_of),
        )
    return total
