"""Whether two answers that math-verify finds equal are different numbers after all.

It compares what sympy made of each text. A decimal is a float there, with 15 digits; the text itself, which math-verify
returns too, has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

from sympy import Basic, Expr, FiniteSet, Interval, Rational, Tuple, expand, nsimplify
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase

_DECIMAL = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)?(?:\.\d+)?")
_NEAR = Rational(1, 1000)
"""Irrational numbers that differ by more than this share of the larger one are different, however small both are."""

Parsed = Sequence[object]
"""What math-verify parsed: expressions of sympy, and texts."""


def differ_as_numbers(wanted: Parsed, given: Parsed) -> bool:
    """Whether every reading of one answer is another number than every reading of the other."""
    factors = (Rational(1), Rational(100), Rational(1, 100)) if _has_percent(wanted, given) else (Rational(1),)  # fmt: skip
    pairs = list(product(_readings(wanted), _readings(given)))
    return bool(pairs) and all(
        all(_differ(a * factor if factor != 1 else a, b) for factor in factors) for a, b in pairs
    )


def _readings(parsed: Parsed) -> list[Any]:
    """The expressions; in place of a decimal, its exact value."""
    expressions = [one for one in parsed if isinstance(one, Basic | MatrixBase)]
    texts = [one.strip() for one in parsed if isinstance(one, str)]
    if len(expressions) == 1 and len(texts) == 1 and texts[0] and _DECIMAL.fullmatch(texts[0]):
        exact = Fraction(texts[0].replace(",", ""))
        return [Rational(exact.numerator, exact.denominator)]
    return list(expressions)


def _has_percent(*answers: Parsed) -> bool:
    return any(isinstance(one, str) and "%" in one for answer in answers for one in answer)


def _differ(a: Any, b: Any) -> bool:  # noqa: ANN401 - sympy's classes
    """Whether both are numbers, or are made of numbers in one way, and not the same. False if that cannot be said."""
    if isinstance(a, Relational) != isinstance(b, Relational):
        # x = 3 and 3: math-verify takes the right side.
        return _differ(getattr(a, "rhs", a), getattr(b, "rhs", b))
    members_a, members_b = _members(a), _members(b)
    if members_a is not None and members_b is not None:
        return len(members_a) == len(members_b) and any(map(_differ, members_a, members_b))
    if not (_is_expression(a) and _is_expression(b)):
        return False
    if not (a.is_number and b.is_number):
        rest = _rational(expand(a - b))
        return rest is not None and rest != 0
    exact_a, exact_b = _rational(a), _rational(b)
    if exact_a is not None and exact_b is not None:
        return exact_a != exact_b
    return _far(a, b)


def _is_expression(value: object) -> bool:
    return isinstance(value, Expr)


def _members(value: Any) -> list[Any] | None:  # noqa: ANN401 - sympy's classes
    """The elements of a container in an order that equal containers share; None for anything else."""
    if isinstance(value, Interval):
        return [value.start, value.end]
    if isinstance(value, Relational):
        return [value.lhs, value.rhs]
    if isinstance(value, FiniteSet):
        elements: list[Any] = list(value.args)
        return sorted(elements, key=lambda one: (one.evalf() if one.is_real else 0, str(one)))
    if isinstance(value, Tuple):
        return list(value.args)
    return value.flat() if isinstance(value, MatrixBase) else None


def _rational(value: Any) -> Rational | None:  # noqa: ANN401 - sympy's classes
    """The exact value of a rational number; None for another one."""
    found = nsimplify(value.doit(), rational=True)
    return found if isinstance(found, Rational) else None


def _far(a: Any, b: Any) -> bool:  # noqa: ANN401 - sympy's classes
    x, y = a.evalf(), b.evalf()
    is_far = abs(x - y) > _NEAR * max(abs(x), abs(y)) if x.is_real and y.is_real else False
    return bool(is_far)
