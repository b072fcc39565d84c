import pytest

from zerogap.obs import Spans


class TickingClock:
    """Advances one second per call."""

    now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


def test_spans_add_up_by_name_and_are_taken_once():
    spans = Spans(clock=TickingClock())
    for _ in range(2):
        with spans.span("step"), spans.span("generate"):
            pass
    assert spans.take_totals() == {"step": 6.0, "generate": 2.0}
    assert spans.take_totals() == {}


def test_each_span_is_written_with_its_place_and_attributes():
    events = []
    spans = Spans(events.append, clock=TickingClock())
    with spans.span("step", step=3), spans.span("train"):
        pass
    assert [(e["span"], e["duration_s"]) for e in events] == [("step/train", 1.0), ("step", 3.0)]
    assert events[1]["step"] == 3
    assert events[0]["began"].endswith("+00:00")


def test_a_block_that_raises_is_recorded_as_failed():
    events = []
    spans = Spans(events.append)
    with pytest.raises(ZeroDivisionError), spans.span("train"):
        _ = 1 / 0
    assert events[0]["failed"] is True
    with spans.span("next"):
        pass
    assert events[1]["span"] == "next"
