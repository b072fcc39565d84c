"""Gradients of matrices, where wanted straight into their ``.grad``; and the embedding.

Autograd makes a fresh tensor for every weight's gradient and adds it to ``.grad`` afterwards: for each
micro-batch as much memory traffic as two copies of the model, and for a tied embedding two temporaries of
its whole size at once. With ``Compute.adds_to_grad`` the backward takes the buffer out of ``.grad``, the product adds to
it, and autograd is given it back as the gradient: it puts the very memory into ``.grad`` again, and then calls the hooks that
wait for a gradient. The sums are the same bits, but for what autograd would add to each other first: the
two gradients of a matrix that a pass uses twice (a tied embedding), and those of an id that occurs twice.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels.backend import PLAIN, Backend, Compute
from zerogap.kernels.choice import backend_of

_IN_FLIGHT = "_zerogap_gradient_in_flight"
"""Attribute of a weight whose buffer is on its way back to ``.grad``: a weak reference to it."""


def gradient_target(weight: Tensor, compute: Compute) -> tuple[Tensor, Tensor | None]:
    """What a backward adds the weight's gradient to, and what it then returns to autograd.

    With ``compute.adds_to_grad`` that is the buffer of ``weight.grad``, both times; if another use of the weight in this pass
    has returned it already, the buffer and None. Otherwise zeros, which are returned.
    """
    if compute.adds_to_grad and weight.is_leaf:
        buffer = weight.grad
        if buffer is not None:
            # Autograd takes the memory only if nobody else holds the tensor.
            weight.grad = None
            setattr(weight, _IN_FLIGHT, weakref.ref(buffer))
            return buffer, buffer
        returned = getattr(weight, _IN_FLIGHT, lambda: None)()
        if returned is not None:
            return returned, None
    zeros = torch.zeros_like(weight)
    return zeros, zeros


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the backward of an autograd Function whose gradients are constants to autograd: kernels make them."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        if torch.is_grad_enabled():
            msg = "double backward (create_graph=True) is unsupported: the kernels have first derivatives only, and the result would be silently wrong; compute second derivatives with another implementation of the model"
            raise KernelError(msg)
        return backward(ctx, *grads)

    return checked


def weight_gradient(
    backend: Backend, compute: Compute, weight_OI: Tensor, grad_TO: Tensor, x_TI: Tensor
) -> Tensor | None:
    """``grad.T @ x``: [T, O], [T, I] -> [O, I], as ``gradient_target`` returns it."""
    into_OI, returned_OI = gradient_target(weight_OI, compute)
    backend.add_weight_gradient_(into_OI, grad_TO, x_TI, compute=compute)
    return returned_OI


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, token_ids_T, weight_VD):  # noqa: ANN001, ANN205
        ctx.save_for_backward(token_ids_T, weight_VD)
        ctx.backend, ctx.compute = backend, compute
        return backend.embedding(token_ids_T, weight_VD)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TD,) = grads
        token_ids_T, weight_VD = ctx.saved_tensors
        into_VD, returned_VD = gradient_target(weight_VD, ctx.compute)
        ctx.backend.embedding_backward_(token_ids_T, grad_TD.contiguous(), into_VD)
        return None, None, None, returned_VD


def embedding(token_ids_T: Tensor, weight_VD: Tensor, *, compute: Compute = PLAIN) -> Tensor:
    """Rows of ``weight_VD``: int64 [T] in [0, V) -> [T, D]. Keeps the ids.

    Raises:
        KernelError: an id outside the vocabulary (IndexError from torch without the C++ kernels).
    """
    backend = backend_of(weight_VD, token_ids_T)
    if torch.is_grad_enabled():
        return _Embedding.apply(backend, compute, token_ids_T, weight_VD)
    return backend.embedding(token_ids_T, weight_VD)
