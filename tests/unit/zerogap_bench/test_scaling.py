import pytest

from zerogap_bench import scaling
from zerogap_bench.records import ScalingCell
from zerogap_bench.scaling import Scaling, summarise_cell


def test_a_cells_cost_is_a_token_of_one_sequence():
    cell = ScalingCell(
        num_sequences=8,
        group_size=4,
        context=100,
        prefill_tokens_per_s=50.0,
        seconds_per_step=(0.3, 0.1, 0.2),
        bytes_per_context_token=2000.0,
    )
    found = summarise_cell(cell)
    assert found["ms_per_step"]["median"] == pytest.approx(200)
    assert found["ms_per_token"] == pytest.approx(25)
    assert found["tokens_per_s"] == pytest.approx(40)
    assert found["measured_kb_per_context_token"] == 2


@pytest.mark.parametrize(
    ("num_sequences", "context", "reason"),
    [(8, 100, None), (8, 1, "at least 2 tokens"), (8, 300, "supports at most 256 tokens"), (12, 100, "whole number of groups"), (64, 100, "GB of memory")],
)  # fmt: skip
def test_what_does_not_fit_is_left_out_with_its_reason(
    monkeypatch, num_sequences: int, context: int, reason: str | None
):
    monkeypatch.setattr(scaling, "available_bytes", lambda: 10_000_000)
    question = Scaling([8], [100], group_size=8, repeats=1)
    question._kv_bytes = 1000
    found = question._why_not(num_sequences, context, 256)
    assert found is None if reason is None else reason in found
