"""zerogap commands: in this process, which has loaded everything already, or in one of their own."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

from zerogap.cli import main


def zerogap(*arguments: str | Path) -> CompletedProcess[str]:
    """In this process."""
    words = [str(word) for word in arguments]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as error:
        code = main(words)
    return CompletedProcess(words, code, out.getvalue(), error.getvalue())


def zerogap_process(*arguments: str | Path) -> CompletedProcess[str]:
    """As a user starts it."""
    return python_process("-m", "zerogap.cli", *arguments)


def python_process(*arguments: str | Path) -> CompletedProcess[str]:
    """This interpreter with other arguments."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
