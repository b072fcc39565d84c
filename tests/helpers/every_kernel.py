"""Every row-wise kernel with inputs of any number of rows: for tests that compare batches, threads or builds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from helpers.kernel_paths import BF16, as_tuple, values_and_gradients
from helpers.sampling_rows import rows_for, select_rows
from zerogap.kernels import (
    VOCAB_CHUNK,
    Head,
    SamplingRows,
    embedding,
    linear,
    log_probs,
    log_probs_with_squares,
    norm_linear,
    qkv_rope,
    rms_norm,
    rope_tables,
    round_bf16,
    sample_tokens,
    swiglu,
    swiglu_linear,
)


@dataclass(frozen=True)
class KernelCase:
    """A function of per-row inputs and of weights."""

    function: Callable[..., object]
    rows: Sequence[Tensor | SamplingRows]
    weights: Sequence[Tensor] = ()
    has_gradients: bool = True

    def of_rows(self, index: Tensor) -> tuple[Tensor, ...]:
        """Outputs of these rows computed together."""
        rows = [x[index] if isinstance(x, Tensor) else select_rows(x, index) for x in self.rows]
        return as_tuple(self.function(*rows, *self.weights))

    def everything(self) -> object:
        """Outputs of all rows, and gradients of all inputs if there are any."""
        inputs = [*self.rows, *self.weights]
        if self.has_gradients:
            return values_and_gradients(self.function, inputs)
        return self.function(*inputs)


def every_kernel(num_rows: int, *, width: int = 52, num_out: int = 21) -> dict[str, KernelCase]:
    """By name. No vector divides the widths; 4 divides the inner one, as rows of MKL's GEMMs need it."""
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    vocab = VOCAB_CHUNK + 9
    x, gate_up = normal(num_rows, width), 3 * normal(num_rows, 2 * width)
    norm, weight, bias, residual = normal(width), normal(num_out, width), normal(num_out), normal(num_rows, num_out)  # fmt: skip
    table, qkv, q_norm, k_norm = (
        normal(vocab, width),
        normal(num_rows, 5 * 26),
        normal(26),
        normal(26),
    )
    inv_freq, heads = torch.rand(13, generator=generator), {"num_heads": 3, "num_kv_heads": 1, "eps": 1e-5}  # fmt: skip
    ids = torch.randint(vocab, (num_rows,), generator=generator)
    uniform = torch.rand(num_rows, dtype=torch.float64, generator=generator)
    edits = [(5, 1.2, -0.5), (vocab - 1, 1.0, -torch.inf)]

    def rope(qkv: Tensor, positions: Tensor, *norms: Tensor, **how: object) -> object:
        return qkv_rope(qkv, *rope_tables(inv_freq, positions), *(norms or (None, None)), **heads, **how)  # fmt: skip

    def score(x: Tensor, ids: Tensor, table: Tensor) -> object:
        return log_probs(x, Head(table, vocab), ids, 0.3 + 0.1 * (ids % 15))

    def score_squares(x: Tensor, ids: Tensor, table: Tensor) -> object:
        return log_probs_with_squares(x, Head(table, vocab), ids, 0.3 + 0.1 * (ids % 15))

    def sampler(**filters: object) -> KernelCase:
        rows = rows_for(uniform, temperature=0.8, edits=edits, **filters)
        return KernelCase(
            lambda x, rows: sample_tokens(x, Head(table, vocab), rows), [x, rows], has_gradients=False
        )  # fmt: skip

    return {
        "rms_norm": KernelCase(lambda x, n: rms_norm(x, n, 1e-5), [x], [norm]),
        "swiglu": KernelCase(swiglu, [gate_up]),
        "linear": KernelCase(linear, [x], [weight, bias]),
        "norm_linear": KernelCase(
            lambda x, *weights: norm_linear(x, *weights, eps=1e-5), [x], [norm, weight, bias]
        ),
        "swiglu_linear": KernelCase(swiglu_linear, [gate_up], [weight]),
        "embedding": KernelCase(lambda ids, table: embedding(ids % 40, table), [ids], [table]),
        "rope_tables": KernelCase(lambda p: rope_tables(inv_freq, p), [ids], has_gradients=False),
        "qkv_rope": KernelCase(rope, [qkv, ids]),
        "qkv_rope with norms": KernelCase(rope, [qkv, ids], [q_norm, k_norm]),
        "round_bf16": KernelCase(round_bf16, [x]),
        "linear in bf16": KernelCase(
            lambda x, r, *weights: linear(x, *weights, residual_TO=r, compute=BF16), [x, residual], [weight, bias]
        ),
        "norm_linear in bf16": KernelCase(
            lambda x, *weights: norm_linear(x, *weights, eps=1e-5, compute=BF16), [x], [norm, weight, bias]
        ),
        "swiglu_linear in bf16": KernelCase(
            lambda x, w: swiglu_linear(x, w, compute=BF16), [gate_up], [weight]
        ),
        "qkv_rope in bf16": KernelCase(
            lambda *x: rope(*x, compute=BF16), [qkv, ids], [q_norm, k_norm]
        ),
        "log_probs": KernelCase(score, [x, ids], [table]),
        "log_probs with squares": KernelCase(score_squares, [x, ids], [table]),
        "sampler": sampler(),
        "sampler with filters": sampler(top_k=50, top_p=0.8, min_p=0.01),
        "greedy sampler": sampler(greedy=True),
    }  # fmt: skip
