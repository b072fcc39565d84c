import pytest
from helpers.run_folder import ledger_record, step_record, write_run

from zerogap.report import write_report
from zerogap.report.charts import draw_charts
from zerogap.report.data import RunData
from zerogap.report.gap_table import gap_table


def run_data(*records):
    return RunData("test", {}, {}, records)


def sources_chart(*records, title="Gap by source"):
    return {chart.title: chart for chart in draw_charts(run_data(*records))}[title]


def test_means_are_over_tokens_and_not_over_steps():
    table = gap_table(run_data(
        ledger_record(1, gap__num_tokens=300, numbers=0.01), ledger_record(2, gap__num_tokens=100, numbers=0.05)
    ))  # fmt: skip
    numbers = {row.source: row for row in table.rows}["numbers"]
    assert [cell.text for cell in numbers.cells] == ["0.0200", "0.100", "0.0200", "0.100"]
    assert "400 audited tokens" in table.caption
    assert "contain numbers, routing and staleness, not sampling" in table.caption


def test_the_caption_has_the_number_of_samples():
    record = ledger_record(1, gap__num_samples=4)
    assert "320 audited tokens of 4 samples" in gap_table(run_data(record)).caption


def test_exact_zeros_are_named_and_nearly_zero_is_not():
    table = gap_table(run_data(ledger_record(1, numbers=1e-9)))
    cells = {row.source: row.cells[2] for row in table.rows}
    assert list(cells) == ["sampling", "numbers", "routing", "staleness", "tokens"]
    assert (cells["sampling"].text, cells["sampling"].is_zero) == ("exactly 0", True)
    assert (cells["numbers"].text, cells["numbers"].is_zero) == ("1.0e-09", False)


def test_what_was_not_attributed_and_what_differs_is_said():
    record = ledger_record(1, tokens=0.1, gap__num_unattributed=7, gap__tokens__differing_share=0.25)  # fmt: skip
    caption = gap_table(run_data(record)).caption
    assert "7 more tokens could not be attributed" in caption
    assert "25 %" in caption


def test_a_run_without_a_ledger_has_no_table():
    assert gap_table(run_data(step_record(1))) is None


def test_signed_means_stand_on_each_other_and_end_at_their_sum():
    """Means of |difference| do not add up: here they are 0.1 and 0.02, and their sum is neither total."""
    records = [
        ledger_record(1, sampling=0.1, numbers=0.02, numbers__signed=-0.02, gap__num_samples=4),
        ledger_record(2, sampling=0.1, numbers=0.0, gap__num_samples=4),
    ]
    chart = sources_chart(*records)
    assert [key.label for key in chart.keys] == ["sampling", "numbers", "sum"]
    assert "Exactly 0 at every step: routing, staleness, tokens." in chart.caption
    assert "add up to the sum" in chart.caption
    assert "over 640 tokens of 8 samples in 2 steps" in chart.caption
    rows = {row["label"]: row for row in chart.hover["rows"]}
    assert rows["sampling"]["text"] == ["0.100", "0.100"]
    assert rows["numbers"]["text"] == ["-0.0200", "0"]
    assert rows["sum"]["text"] == ["0.0800", "0.100"]
    # Positive bars stand on 0, negative ones hang from it, and the line has their sum.
    zero = next(mark.at for mark in chart.y_ticks if float(mark.label) == 0)
    down, up, end = (abs(rows[name]["y"][0] - zero) for name in ("numbers", "sampling", "sum"))
    assert rows["numbers"]["y"][0] > zero > rows["sampling"]["y"][0]
    assert end == pytest.approx(up - down, abs=0.02)


def test_the_sizes_of_the_sources_are_lines_of_their_own():
    chart = sources_chart(ledger_record(1, sampling=0.1, numbers=0.02, numbers__signed=-0.02), title="Size of each source")  # fmt: skip
    assert "do not add up" in chart.caption
    rows = {row["label"]: row["text"] for row in chart.hover["rows"]}
    assert rows == {"sampling": ["0.100"], "numbers": ["0.0200"]}
    assert not any("stack" in key.style for key in chart.keys)


def test_a_folder_without_signed_means_shows_the_sizes():
    record = {k: v for k, v in ledger_record(1, numbers=0.02).items() if "signed" not in k}
    titles = [chart.title for chart in draw_charts(run_data(record))]
    assert "Size of each source" in titles
    assert "Gap by source" not in titles


def test_five_exact_zeros_are_a_line_in_their_band():
    chart = sources_chart(ledger_record(1), ledger_record(2))
    assert chart.zero_band_top is not None
    assert "All five are exactly 0 at every step." in chart.caption
    assert [key.last for key in chart.keys] == ["0"]


def test_the_page_has_the_table(tmp_path):
    folder = write_run(tmp_path / "r", [ledger_record(1, numbers=0.01)])
    page = write_report(folder, decode_token=str).read_text()
    assert "Where the gap comes from" in page
    assert "<tr><th>numbers</th><td>0.0100</td>" in page
    assert "<tr><th>routing</th>" + '<td class="zero">exactly 0</td>' * 4 in page
