"""Gradients of matrix products: to the input, and to the weight, where wanted straight into its ``.grad``.

Autograd makes a fresh tensor for every weight's gradient and adds it to ``.grad`` afterwards: for each
micro-batch as much memory traffic as two copies of the model, and for a tied embedding two temporaries of
its whole size at once. Inside ``gradients_in_place()`` the product adds to ``.grad`` itself, and autograd
is told that there is no gradient. The sums are the same bits, but for what autograd would add to each other first: the
two gradients of a matrix that a pass uses twice (a tied embedding), and those of an id that occurs twice.
"""

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from zerogap.errors import KernelError
from zerogap.kernels.native import native
from zerogap.kernels.products import multiplies_own

_in_place: ContextVar[bool] = ContextVar("gradients_in_place", default=False)


@contextmanager
def gradients_in_place() -> Generator[None]:
    """Within it, ``backward()`` adds the gradients of matrices that have a ``.grad`` to it directly.

    For ``backward()`` only: ``torch.autograd.grad`` and hooks on those matrices get None.
    """
    token = _in_place.set(True)
    try:
        yield
    finally:
        _in_place.reset(token)


def gradient_target(weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a backward adds the weight's gradient to, and what it then returns to autograd.

    Within ``gradients_in_place()`` that is ``weight.grad`` and None; else zeros, which are returned.
    """
    if _in_place.get() and weight.is_leaf and weight.grad is not None:
        return weight.grad, None
    zeros = torch.zeros_like(weight)
    return zeros, zeros


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the backward of an autograd Function whose gradients are constants to autograd: kernels make them."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        if torch.is_grad_enabled():
            msg = "a gradient of a gradient was asked for (create_graph=True), and kernels have first gradients only: it would be wrong without a word; take second ones of another model"
            raise KernelError(msg)
        return backward(ctx, *grads)

    return checked


def input_gradient(grad_TO: Tensor, weight_OI: Tensor, into_TI: Tensor | None = None) -> Tensor:
    """``grad @ weight``: [T, O], [O, I] -> [T, I]; added to ``into_TI`` if given."""
    if multiplies_own(grad_TO):
        out_TI = grad_TO.new_empty(len(grad_TO), weight_OI.shape[1]) if into_TI is None else into_TI
        native.gemm_nn(
            grad_TO.contiguous(), weight_OI.contiguous(), out_TI, accumulate=into_TI is not None
        )
        return out_TI
    return torch.mm(grad_TO, weight_OI) if into_TI is None else into_TI.addmm_(grad_TO, weight_OI)


def weight_gradient(weight_OI: Tensor, grad_TO: Tensor, x_TI: Tensor) -> Tensor | None:
    """``grad.T @ x``: [T, O], [T, I] -> [O, I]; None if it was added to ``weight.grad``."""
    into_OI, returned_OI = gradient_target(weight_OI)
    add_weight_gradient_(into_OI, grad_TO, x_TI)
    return returned_OI


def add_weight_gradient_(buffer_OI: Tensor, grad_TO: Tensor, x_TI: Tensor) -> None:
    """``buffer += grad.T @ x``."""
    if multiplies_own(grad_TO) and buffer_OI.is_contiguous():
        native.gemm_tn(grad_TO.contiguous(), x_TI.contiguous(), buffer_OI, accumulate=True)
    else:
        buffer_OI.add_(torch.mm(grad_TO.t(), x_TI))


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, token_ids_T, weight_VD):  # noqa: ANN001, ANN205
        ctx.save_for_backward(token_ids_T, weight_VD)
        return _rows(token_ids_T, weight_VD)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TD,) = grads
        token_ids_T, weight_VD = ctx.saved_tensors
        into_VD, returned_VD = gradient_target(weight_VD)
        if native.handles(grad_TD) and into_VD.is_contiguous():
            native.embedding_backward(token_ids_T, grad_TD.contiguous(), into_VD)
        else:
            into_VD.index_add_(0, token_ids_T, grad_TD)
        return None, returned_VD


def _rows(token_ids_T: Tensor, weight_VD: Tensor) -> Tensor:
    if not native.handles(weight_VD):
        return functional.embedding(token_ids_T, weight_VD)
    return native.embedding(token_ids_T, weight_VD)


def embedding(token_ids_T: Tensor, weight_VD: Tensor) -> Tensor:
    """Rows of ``weight_VD``: int64 [T] in [0, V) -> [T, D].

    Raises:
        KernelError: an id outside the vocabulary (IndexError from torch without the C++ kernels).
    """
    if torch.is_grad_enabled():
        return _Embedding.apply(token_ids_T, weight_VD)
    return _rows(token_ids_T, weight_VD)
