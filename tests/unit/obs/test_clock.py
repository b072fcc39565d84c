from datetime import datetime

import pytest

from zerogap.obs import format_duration, monotonic_s, stamp


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (61.2, "1 min 01 s"),
        (3599.6, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations_have_two_units(seconds, text):
    assert format_duration(seconds) == text


def test_stamps_are_utc_and_the_clock_does_not_go_back():
    assert datetime.fromisoformat(stamp()).utcoffset().total_seconds() == 0
    assert monotonic_s() <= monotonic_s()
