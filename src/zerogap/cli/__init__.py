"""The ``zerogap`` command: arguments in, one call into a lower room, an exit code out.

No module here imports torch, so ``--help`` and ``--dry-run`` answer at once; each command imports what it runs.
Exit codes: 0 done; 1 a bug (with a traceback) or a failed check (certify, replay, bench); 2 an error to correct (with a
message); 130 after Ctrl-C, 143 after SIGTERM.
"""

from zerogap.cli.entry import main

__all__ = ["main"]
