"""``report.html``: one file without external resources, readable while the run continues.

Text from the run (completions, prompts, settings, errors) is hostile until escaped: see ``html``.
"""

from collections.abc import Callable
from pathlib import Path

from zerogap.report import plot, tokens
from zerogap.report.alarms import alarm_rows
from zerogap.report.cards import build_cards, describe_ranking
from zerogap.report.charts import draw_charts
from zerogap.report.data import changed_settings, flatten, read_run
from zerogap.report.gap_table import gap_table
from zerogap.report.html import render, write_page
from zerogap.report.rollouts import rank, read_newest
from zerogap.report.summary import describe_outcome, tiles
from zerogap.report.tables import (
    environment_rows,
    exclusion_counts,
    outcome_counts,
    setting_rows,
    step_table,
)
from zerogap.run_folder import RunFolder

FILE_NAME = "report.html"


def write_report(run_dir: Path, *, decode_token: Callable[[int], str]) -> Path:
    """Write ``<run_dir>/report.html`` from what the folder holds, and return its path.

    Args:
        run_dir: a run's folder, finished or not; nothing outside it is read.
        decode_token: text of one id, with its leading blank; special tokens too. It may raise LookupError
            or ValueError for an id that the tokenizer does not have.

    Raises:
        CheckpointError: not the folder of a run, or ``metrics.jsonl`` or ``config.json`` is damaged.
    """
    folder = RunFolder(run_dir)
    run = read_run(folder)
    notes: list[str] = []
    ranked = rank(read_newest(run_dir / "rollouts", notes))
    html = render(
        "report.html",
        run=run,
        sentences=describe_outcome(run),
        tiles=tiles(run),
        alarms=alarm_rows(run),
        charts=draw_charts(run),
        gaps=gap_table(run),
        outcomes=outcome_counts(run),
        exclusions=exclusion_counts(run),
        settings=setting_rows(changed_settings(run.config)),
        environment_rows=environment_rows(flatten(run.environment)),
        step_table=step_table(run),
        card_lists=build_cards(ranked, decode_token),
        ranking=describe_ranking(ranked) if ranked.steps else "",
        notes=notes,
        plot=plot,
        token_fields=tokens.FIELDS,
        legends={"gap": tokens.GAP_LEGEND, "chance": tokens.CHANCE_LEGEND},
    )
    return write_page(run_dir / FILE_NAME, html)
