"""Named tolerances: what is compared decides how close it must be, never the test.

``FP32_MODEL.check(ours, theirs)`` compares the largest and the mean difference, shape, dtype family and
the places of NaN and infinity, and says which element is worst. Each use is paired with a
``helpers.planted_fault`` block that must fail, so that no tolerance is wide enough to accept anything.

Accepts tensors, arrays, numbers, and (nested) mappings or sequences of these with equal keys and lengths.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Tolerance:
    """An element may differ by ``atol + rtol * |expected| + scale_rtol * max|expected|``.

    The mean difference of a tensor may be ``mean_share`` of what that limit allows on average: a difference
    that is everywhere near the limit is a bias, not rounding.
    """

    name: str
    atol: float = 0.0
    rtol: float = 0.0
    scale_rtol: float = 0.0
    """Relative to the tensor's largest element: for sums whose terms cancel, such as gradients."""
    mean_share: float = 0.5

    def check(self, actual: object, expected: object, what: str = "") -> None:
        """Raise AssertionError, naming the worst element, unless everything is within this tolerance."""
        for path, ours, theirs in _pairs(actual, expected, what):
            _check_same_kind(self.name, path, ours, theirs)
            self._check_close(path, ours.double(), theirs.double())

    def _check_close(self, path: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        finite = theirs.isfinite()
        if not torch.equal(finite, ours.isfinite()) or not torch.equal(
            theirs[~finite].nan_to_num(nan=0.0), ours[~finite].nan_to_num(nan=0.0)
        ):
            raise AssertionError(f"{self.name}{path}: NaN or infinity in different places")
        if not finite.any():
            return
        difference = torch.where(finite, (ours - theirs).abs(), 0.0)
        size = torch.where(finite, theirs.abs(), 0.0)
        limit = self.atol + self.rtol * size + self.scale_rtol * size.max()
        mean, mean_limit = difference[finite].mean(), self.mean_share * limit[finite].mean()
        if (difference > limit).any() or mean > mean_limit:
            raise AssertionError(
                f"{self.name}{path}: max difference {difference.max():.3g}, mean {mean:.3g} "
                f"(mean limit {mean_limit:.3g}); {_worst(ours, theirs, difference - limit)}"
            )


@dataclass(frozen=True)
class Exact:
    """Bit for bit (torch.equal), dtype included; NaN equals NaN in the same place."""

    name: str = "EXACT"

    def check(self, actual: object, expected: object, what: str = "") -> None:
        """Raise AssertionError, counting and naming what differs, unless everything is equal."""
        for path, ours, theirs in _pairs(actual, expected, what):
            _check_same_kind(self.name, path, ours, theirs)
            differs = ~((ours == theirs) | ((ours != ours) & (theirs != theirs)))
            if differs.any():
                size = torch.where(differs, (ours.double() - theirs.double()).abs(), 0.0)
                raise AssertionError(
                    f"{self.name}{path}: {int(differs.sum())} of {differs.numel()} elements differ, "
                    f"max {size.max():.3g}, mean {size.mean():.3g}; {_worst(ours, theirs, size)}"
                )


@dataclass(frozen=True)
class Norm:
    """Each tensor by itself: the 2-norm of the difference may be ``rtol`` of the expected one's.

    Where ``element_rtol`` is given, no element may differ by more than that share of the tensor's largest.
    """

    name: str
    rtol: float
    element_rtol: float | None = None

    def check(self, actual: object, expected: object, what: str = "") -> None:
        """Raise AssertionError unless each tensor is within this tolerance; NaN never is."""
        for path, ours, theirs in _pairs(actual, expected, what):
            _check_same_kind(self.name, path, ours, theirs)
            difference, size = (
                (ours.double() - theirs.double()).norm().item(),
                theirs.double().norm().item(),
            )
            if not difference <= self.rtol * size:
                raise AssertionError(
                    f"{self.name}{path}: a difference of norm {difference:.3g} to a tensor of {size:.3g}"
                )
        if self.element_rtol is not None:
            Tolerance(self.name, scale_rtol=self.element_rtol).check(actual, expected, what)


EXACT = Exact()
"""Two paths that must do the same additions in the same order; ids, masks, counters."""
FP32_SAME_OP = Tolerance("FP32_SAME_OP", atol=1e-5, rtol=1.3e-6)
"""One operation, two implementations in fp32 (torch's own defaults)."""
FP32_MODEL = Tolerance("FP32_MODEL", atol=3e-5, rtol=3e-5)
"""A whole forward pass in fp32 against another implementation: hidden states, logits, log-probs."""
FP32_MODEL_GRADIENT = Tolerance("FP32_MODEL_GRADIENT", scale_rtol=3e-5)
"""Gradients of a whole model in fp32 against another implementation, relative to each tensor's largest element."""
BF16_MODEL = Tolerance("BF16_MODEL", atol=0.15, mean_share=0.125)
"""Logits of a tiny model in bf16 against another implementation that rounds elsewhere; they spread by about 1.2."""
BF16_MODEL_GRADIENT = Norm("BF16_MODEL_GRADIENT", rtol=0.06)
"""A parameter's gradient in bf16 against another implementation, whose gradients are rounded too."""
GRADIENT = Tolerance("GRADIENT", scale_rtol=1e-6)
"""One gradient by two layouts (micro-batches, packing, order) in fp32, relative to its largest element."""
GRADIENT_NORM = Norm("GRADIENT_NORM", rtol=1e-6, element_rtol=2**-18)
"""The same, where terms of opposite signs cancel in single elements: fp32 has rounded the terms, not their sum.

With dpo, sft and a tree of equal samples, layouts differed by at most 1.6e-7 of the sum of the terms' sizes. Samples that cancel
as a whole (equal ones, whose advantages sum to 0) have a gradient without a size of its own: tests give them other advantages.
"""
FLOAT64_REFERENCE = Tolerance("FLOAT64_REFERENCE", atol=1e-6, rtol=2e-6)
"""An fp32 formula against a plain float64 loop."""
FLOAT64_SAME_OP = Tolerance("FLOAT64_SAME_OP", atol=1e-12, rtol=1e-12)
"""One formula, two implementations, both in float64."""
VECTOR_EXP = Tolerance("VECTOR_EXP", rtol=2e-7)
"""The kernels' exp against float64, as a ratio to 1: the bound that vec.h states."""
KV_16_BIT = Tolerance("KV_16_BIT", atol=2e-2)
"""Log-probs of tiny models against an engine that keeps keys and values in 16 bits."""


def _pairs(
    actual: object, expected: object, path: str
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or actual.keys() != expected.keys():
            raise AssertionError(f"{path}: keys differ: {actual} vs {list(expected)}")
        for key in expected:
            yield from _pairs(actual[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, Sequence) and not _is_flat(expected):
        if not isinstance(actual, Sequence) or len(actual) != len(expected):
            raise AssertionError(f"{path}: lengths differ")
        for i, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(ours, theirs, f"{path}[{i}]")
    else:
        yield (f" {path}" if path else ""), _as_tensor(actual), _as_tensor(expected)


def _is_flat(values: Sequence) -> bool:
    return all(isinstance(value, int | float | bool | np.number) for value in values)


def _as_tensor(value: object) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    # A copy: records hand out read-only arrays, which torch would warn about.
    return torch.as_tensor(np.array(value))


def _check_same_kind(name: str, path: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if ours.shape != theirs.shape:
        raise AssertionError(
            f"{name}{path}: shape {tuple(ours.shape)} is not {tuple(theirs.shape)}"
        )
    if name == EXACT.name and ours.dtype != theirs.dtype:
        raise AssertionError(f"{name}{path}: dtype {ours.dtype} is not {theirs.dtype}")


def _worst(ours: torch.Tensor, theirs: torch.Tensor, size: torch.Tensor) -> str:
    if size.dim() == 0:
        return f"got {ours.item()!r}, expected {theirs.item()!r}"
    flat = int(size.nan_to_num(nan=math.inf).argmax())
    at = tuple(int(i) for i in np.unravel_index(flat, size.shape))
    return f"worst at {at}: got {ours[at].item()!r}, expected {theirs[at].item()!r}"
