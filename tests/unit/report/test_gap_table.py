from helpers.run_folder import ledger_record, step_record, write_run

from zerogap.report import write_report
from zerogap.report.charts import draw_charts
from zerogap.report.data import RunData
from zerogap.report.gap_table import gap_table


def run_data(*records):
    return RunData("test", {}, {}, records)


def sources_chart(*records):
    return {chart.title: chart for chart in draw_charts(run_data(*records))}["Gap by source"]


def test_means_are_over_tokens_and_not_over_steps():
    table = gap_table(run_data(
        ledger_record(1, gap__num_tokens=300, numbers=0.01), ledger_record(2, gap__num_tokens=100, numbers=0.05)
    ))  # fmt: skip
    numbers = {row.source: row for row in table.rows}["numbers"]
    assert [cell.text for cell in numbers.cells] == ["0.0200", "0.100", "0.0200", "0.100"]
    assert "400 audited tokens" in table.caption


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


def test_sources_stand_on_each_other_and_exact_zeros_are_listed():
    chart = sources_chart(
        ledger_record(1, sampling=0.1, numbers=0.02), ledger_record(2, sampling=0.1, numbers=0.0)
    )
    assert [key.label for key in chart.keys] == ["sampling", "numbers"]
    assert "Exactly 0 at every step: routing, staleness, tokens." in chart.caption
    assert [row["text"] for row in chart.hover["rows"]] == [["0.100", "0.100"], ["0.0200", "0"]]


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
