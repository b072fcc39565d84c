"""The ``zerogap`` command: arguments in, one call of the run room, an exit code out.

Nothing here imports torch, so that ``--help`` and ``--dry-run`` answer at once: each command imports what it runs.
Exit codes: 0 done, 1 a bug (with a traceback) or a check that failed (certify, bench), 2 something to correct (with a message), 130 interrupted.
"""

from zerogap.cli.entry import main

__all__ = ["main"]
