"""Gradients of matrices, added straight to their ``.grad`` if asked; and the embedding.

Autograd allocates a tensor for every weight's gradient and then adds it to ``.grad``. Per micro-batch that is the
memory traffic of two copies of the model, and a tied embedding needs two temporaries of its whole size at once. With
``Compute.adds_to_grad`` the backward takes the buffer out of ``.grad``, the GEMM adds to it, and the backward returns
it as the gradient: autograd puts the same memory back into ``.grad`` and calls the hooks that wait for a gradient. The
bits are the same, except for gradients that autograd would first add to each other: the two of a matrix that a pass
uses twice (a tied embedding), and those of an id that occurs twice.
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
"""Attribute of a weight whose buffer is on its way back to ``.grad``: a weak reference to the buffer."""


def gradient_target(weight: Tensor, compute: Compute) -> tuple[Tensor, Tensor | None]:
    """The tensor to add the weight's gradient to, and the tensor to return to autograd.

    With ``compute.adds_to_grad`` both are the buffer of ``weight.grad``; if another use of the weight in this pass has
    returned it already, the second is None. Otherwise both are one new tensor of zeros.
    """
    if compute.adds_to_grad and weight.is_leaf:
        buffer = weight.grad
        if buffer is not None:
            # Autograd reuses the memory only if nothing else references the tensor.
            weight.grad = None
            setattr(weight, _IN_FLIGHT, weakref.ref(buffer))
            return buffer, buffer
        returned = getattr(weight, _IN_FLIGHT, lambda: None)()
        if returned is not None:
            return returned, None
    zeros = torch.zeros_like(weight)
    return zeros, zeros


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a backward that computes with kernels, which autograd cannot differentiate: refuses double backward."""

    @functools.wraps(backward)
    def checked(ctx: Any, *grads: Tensor | None) -> Any:  # noqa: ANN401
        if torch.is_grad_enabled():
            msg = "double backward (create_graph=True) is unsupported: the kernels have first derivatives only, so the result would be silently wrong; compute second derivatives with another implementation of the model"
            raise KernelError(msg)
        return backward(ctx, *grads)

    return checked


def weight_gradient(
    backend: Backend, compute: Compute, weight_OI: Tensor, grad_TO: Tensor, x_TI: Tensor
) -> Tensor | None:
    """``grad.T @ x``: [T, O], [T, I] -> [O, I], added to the ``gradient_target``; returns what autograd gets."""
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
    """Rows of ``weight_VD``: int64 [T] in [0, V) -> [T, D]. Keeps the ids for the backward.

    Raises:
        KernelError: an id outside the vocabulary (IndexError from torch without the C++ kernels).
    """
    backend = backend_of(weight_VD, token_ids_T)
    if torch.is_grad_enabled():
        return _Embedding.apply(backend, compute, token_ids_T, weight_VD)
    return backend.embedding(token_ids_T, weight_VD)
