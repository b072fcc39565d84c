"""``python signalled_run.py SIGNAL MOMENT COUNT ARGUMENTS...``: the zerogap command, which sends itself a signal.

It does so once COUNT records of MOMENT are on disk: lines of a file (``metrics.jsonl``) or spans of a name
(``step/generate``). So a test knows where in its work a run is hit, however busy the machine is.
"""

import os
import signal
import sys
from pathlib import Path

from zerogap.cli import main
from zerogap.obs import JsonlFile


def send_itself(number: int, *, moment: str, count: int) -> None:
    """Have the signal follow the record."""
    write, seen = JsonlFile.write, []

    def write_and_send(self: JsonlFile, record: dict) -> None:
        write(self, record)
        if moment in (Path(self._file.name).name, record.get("span")):
            seen.append(record)
            if len(seen) == count:
                os.kill(os.getpid(), number)

    JsonlFile.write = write_and_send


if __name__ == "__main__":
    name, moment, count, *arguments = sys.argv[1:]
    send_itself(signal.Signals[name], moment=moment, count=int(count))
    sys.exit(main(arguments))
