"""Whether two records are one, to the bit."""

from dataclasses import fields

import numpy as np

from zerogap.types import Ragged, Sample


def assert_same(ours: Sample, theirs: Sample) -> None:
    """Every field is equal; columns in type, shape and bits too."""
    for field in fields(Sample):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, Ragged):
            assert isinstance(b, Ragged), field.name
            _assert_same_array(field.name, a.values, b.values)
            _assert_same_array(field.name, a.offsets, b.offsets)
        elif isinstance(a, np.ndarray):
            _assert_same_array(field.name, a, b)
        else:
            assert a == b, field.name


def _assert_same_array(name: str, a: np.ndarray, b: np.ndarray) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape), name
    assert a.tobytes() == b.tobytes(), name
