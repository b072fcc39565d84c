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
    formula: Callable[..., Tensor], answers: Sequence[Tensor], *, learns: bool = True
) -> tuple[float, list[np.ndarray | None]]:
    """The loss, and its gradient by each model output; None for an output that it does not depend on.

    Args:
        formula: computes the loss from float32 copies of the outputs on the host, with gradient if ``learns``.
        answers: the model's outputs, on its device.
        learns: whether to compute gradients.
    """
    return evaluate(formula, [to_host(answer) for answer in answers], learns=learns)


def evaluate(
    formula: Callable[..., Tensor], answers: Sequence[np.ndarray], *, learns: bool
) -> tuple[float, list[np.ndarray | None]]:
    """``loss_and_gradients`` of outputs that are on the host already."""
    leaves = [torch.from_numpy(answer).requires_grad_(learns) for answer in answers]
    with torch.set_grad_enabled(learns):
        loss = formula(*leaves)
    if learns:
        loss.backward()
    return loss.item(), [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]


def hand_back(answers: Sequence[Tensor], gradients: Sequence[np.ndarray | None]) -> None:
    """Run the model's backward pass from the gradients of its outputs."""
    reached = [(a, g) for a, g in zip(answers, gradients, strict=True) if g is not None]
    # Through a scalar whose gradient by each output is the given one to the bit: torch.autograd.backward with gradients
    # imports sympy, which takes 70 MB and a second.
    parts = [(answer * to_device(g, answer.device)).sum() for answer, g in reached]
    torch.stack(parts).sum().backward()
