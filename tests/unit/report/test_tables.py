from helpers.run_folder import step_record

from zerogap.report.data import RunData
from zerogap.report.tables import (
    MAX_STEP_ROWS,
    environment_rows,
    exclusion_counts,
    outcome_counts,
    setting_rows,
    step_table,
)


def run_data(*records):
    return RunData("test", {}, {}, records)


def test_outcomes_are_counted_over_all_steps_with_their_share():
    counts = outcome_counts(run_data(step_record(1), step_record(2, outcome__aborted=1)))
    assert [(row.label, row.count, row.share) for row in counts] == [
        ("completed", "14", "87.5 %"),
        ("truncated", "2", "12.5 %"),
        ("aborted", "1", "6.25 %"),
    ]
    assert [row.is_failure for row in counts] == [False, False, True]


def test_exclusions_name_their_reason_and_are_shares_of_their_own_kind():
    excluded = exclusion_counts(run_data(step_record(1, excluded__invalid_outcome=2)))
    shares = {row.label: (row.count, row.share) for row in excluded}
    assert shares["excluded: invalid outcome"] == ("2", "25 %")
    assert shares["group: without signal"] == ("1", "50 %")
    assert all(row.description for row in excluded)


def test_nothing_counted_is_no_table():
    assert outcome_counts(run_data()) == exclusion_counts(run_data()) == []


def test_what_a_step_did_not_measure_is_empty_and_what_no_step_measured_has_no_column():
    table = step_table(run_data(step_record(1, policy__entropy=None), step_record(2)))
    assert "eval/reward/mean" not in table.columns
    at = 1 + table.columns.index("policy/entropy")
    assert [row[at] for row in table.rows] == ["", "0.800"]


def test_a_long_run_shows_every_so_many_steps_and_always_the_last():
    num_steps = 3 * MAX_STEP_ROWS + 1
    table = step_table(run_data(*(step_record(step) for step in range(1, num_steps + 1))))
    assert len(table.rows) <= MAX_STEP_ROWS
    assert table.rows[-1][0] == str(num_steps)
    assert int(table.rows[1][0]) - int(table.rows[0][0]) == table.every == 4


def test_settings_read_like_a_recipe_and_an_unknown_environment_is_left_out():
    assert setting_rows({"a.b": "x", "c": True, "d": None}) == [
        ("a.b", '"x"'),
        ("c", "true"),
        ("d", "null"),
    ]
    assert environment_rows({"commit": None, "threads": 2}) == [("threads", "2")]
