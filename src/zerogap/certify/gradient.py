"""Promise 3: micro-batches, packing and order of a step's samples do not change its gradient."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from zerogap.certify.finding import Finding

LIMIT = 1e-6
"""Upper limit for norm(difference) / norm(gradient), fp32."""

Gradient = Mapping[str, Tensor]


def check_gradient(layouts: Mapping[str, Callable[[], Gradient]]) -> Finding:
    """Compute one step's gradient in several layouts, and compare each with the first.

    Args:
        layouts: name -> the gradient by parameter; it may be overwritten by the next call.
    """
    (_, compute), *others = layouts.items()
    reference = {name: gradient.clone() for name, gradient in compute().items()}
    size = math.hypot(*(_norm(gradient) for gradient in reference.values()))
    if not (math.isfinite(size) and size > 0):
        return Finding(is_kept=False, figure=f"the gradient's norm is {size}, so layouts cannot be compared", cure="certify weights that are finite and not all equal")  # fmt: skip
    errors = {name: _distance(compute(), reference) / size for name, compute in others}
    worst = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name])
    figure = f"{len(layouts)} layouts of one step: largest relative difference {errors[worst]:.1e}"
    if errors[worst] <= LIMIT:
        return Finding(is_kept=True, figure=f"{figure} (limit {LIMIT:.0e})")
    wrong = ", ".join(f"{name} {error:.1e}" for name, error in errors.items() if not error <= LIMIT)
    cure = f"above the limit of {LIMIT:.0e}: {wrong}; a denominator or a mask depends on the layout: please report it"
    return Finding(is_kept=False, figure=figure, cure=cure)


def _distance(ours: Gradient, reference: Gradient) -> float:
    return math.hypot(*(_norm(ours[name] - reference[name]) for name in reference))


def _norm(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).item()
