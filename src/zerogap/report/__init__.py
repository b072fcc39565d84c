"""The report of a run: ``report.html`` in its folder.

In comes a run's folder, finished or not (``config.json``, ``environment.json``, ``metrics.jsonl``, ``rollouts/``), and
a function that gives the text of a token; out goes one file that works offline, in light and dark mode. Nothing else in
the folder changes, and no live run is needed. The page names what is missing.
"""

from zerogap.report.page import write_report

__all__ = ["write_report"]
