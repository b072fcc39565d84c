"""Computes the loss on the host: model outputs are copied from the device, and their gradients are copied back.

A micro-batch's loss depends on a few thousand numbers. Its formulas check values, name samples in errors and work in
float64; on a device, each of these checks would have to wait for the device.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import to_device, to_host


def loss_and_gradients(
    formula: Callable[..., Tensor], outputs: Sequence[Tensor], *, learns: bool = True
) -> tuple[float, list[np.ndarray | None]]:
    """The loss, and its gradient by each model output; None for an output that it does not depend on.

    Args:
        formula: computes the loss from float32 copies of the outputs on the host, with gradient if ``learns``.
        outputs: the model's outputs, on its device.
        learns: whether to compute gradients.
    """
    return evaluate(formula, [to_host(output) for output in outputs], learns=learns)


def evaluate(
    formula: Callable[..., Tensor], outputs: Sequence[np.ndarray], *, learns: bool
) -> tuple[float, list[np.ndarray | None]]:
    """``loss_and_gradients`` of outputs that are on the host already."""
    leaves = [torch.from_numpy(output).requires_grad_(learns) for output in outputs]
    with torch.set_grad_enabled(learns):
        loss = formula(*leaves)
    if learns:
        loss.backward()
    return loss.item(), [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]


def backward(outputs: Sequence[Tensor], gradients: Sequence[np.ndarray | None]) -> None:
    """The model's backward pass, from the gradients of its outputs."""
    # Through a scalar whose gradient by each output is the given one to the bit: torch.autograd.backward with gradients
    # imports sympy, which takes 70 MB and a second.
    parts = [
        (output * to_device(gradient, output.device)).sum()
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None
    ]
    torch.stack(parts).sum().backward()
