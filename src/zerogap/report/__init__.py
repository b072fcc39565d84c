"""The page a run leaves for people: ``report.html`` in its folder.

In comes a run's folder, finished or not (``config.json``, ``environment.json``, ``metrics.jsonl``, ``rollouts/``), and
a function that gives the text of a token; out goes one file that works offline, in light and dark. Nothing here
changes anything else in the folder or knows a live run. What is missing is left out, and named on the page.
"""

from zerogap.report.page import write_report

__all__ = ["write_report"]
