"""The loss is computed on the host: a model's answers come from its device, and their gradient goes back.

A micro-batch has a few thousand numbers that a loss is about. Its formulas look at values, name records in errors and work
in float64, which a device would have to be waited for at each step.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import to_device, to_host


def loss_and_gradients(
    formula: Callable[..., Tensor], answers: Sequence[Tensor], *, learns: bool = True
) -> tuple[float, list[np.ndarray | None]]:
    """The loss of a model's answers, and its gradient by each of them; None for one that it does not depend on.

    Args:
        formula: takes the answers as float32 tensors on the host, with gradient if it ``learns``.
        answers: on the model's device.
        learns: whether there is a gradient.
    """
    return evaluate(formula, [to_host(answer) for answer in answers], learns=learns)


def evaluate(
    formula: Callable[..., Tensor], answers: Sequence[np.ndarray], *, learns: bool
) -> tuple[float, list[np.ndarray | None]]:
    """As ``loss_and_gradients``, of answers on the host."""
    leaves = [torch.from_numpy(answer).requires_grad_(learns) for answer in answers]
    with torch.set_grad_enabled(learns):
        loss = formula(*leaves)
    if learns:
        loss.backward()
    return loss.item(), [None if leaf.grad is None else leaf.grad.numpy() for leaf in leaves]


def hand_back(answers: Sequence[Tensor], gradients: Sequence[np.ndarray | None]) -> None:
    """The backward pass of what gave the answers."""
    reached = [(a, g) for a, g in zip(answers, gradients, strict=True) if g is not None]
    # As a scalar, whose gradient by an answer is the given one to the bit: torch.autograd.backward with gradients imports
    # sympy, 70 MB and a second.
    parts = [(answer * to_device(g, answer.device)).sum() for answer, g in reached]
    torch.stack(parts).sum().backward()
