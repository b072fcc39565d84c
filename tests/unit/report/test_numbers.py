import math

import numpy as np
import pytest

from zerogap.report.numbers import (
    format_bytes,
    format_log_prob,
    format_number,
    format_share,
    plural,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (0.31249, "0.312"),
        (9.999, "10.0"),
        (99.97, "100"),
        (7.0, "7"),
        (12.54, "12.5"),
        (-0.5, "-0.500"),
        (1234.4, "1,234"),
        (0.0009, "9.0e-04"),
        (1e-45, "1.0e-45"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert format_number(value) == text


def test_the_smallest_float32_does_not_read_as_zero():
    assert format_number(float(np.finfo(np.float32).smallest_subnormal)) != "0"


def test_neighbouring_float32_log_probs_read_differently():
    value = np.float32(-0.73105)
    assert format_log_prob(float(value)) != format_log_prob(
        float(np.nextafter(value, np.float32(0)))
    )


def test_no_log_prob_is_no_text():
    assert format_log_prob(math.nan) == ""
    assert format_log_prob(-0.0) == "0"


def test_shares_near_the_ends_do_not_read_as_the_ends():
    shares = [0.0, 1e-6, 0.5, 1 - 1e-6, 1.0]
    assert [format_share(s) for s in shares] == ["0 %", "<0.1 %", "50 %", ">99.9 %", "100 %"]


def test_bytes_and_counts():
    assert (format_bytes(812 * 2**20), format_bytes(3.2 * 2**30)) == ("812 MiB", "3.20 GiB")
    assert (plural(1, "step"), plural(1200, "step")) == ("1 step", "1,200 steps")
