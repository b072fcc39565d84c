"""``main``: parse, dispatch, and turn errors into messages and exit codes."""

import errno
import os
import sys
from collections.abc import Sequence

from zerogap.cli.overrides import split_overrides
from zerogap.cli.parser import build_parser
from zerogap.errors import ZerogapError

_OF_A_PLACE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
)
"""Errors of a path that the user gave, or of its disk. Others are bugs, here or in a user's function, and keep their traceback."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    own, overrides = split_overrides(sys.argv[1:] if arguments is None else arguments)
    parsed = build_parser().parse_args(own)
    from zerogap.config.env import let_torch_threads_sleep

    let_torch_threads_sleep()
    try:
        return parsed.run(parsed, overrides)
    except ZerogapError as error:
        if parsed.traceback:
            raise
        print(f"zerogap {parsed.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nzerogap {parsed.command}: interrupted{parsed.when_interrupted}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader closed the pipe (`zerogap generate ... | head`); Python must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if parsed.traceback or error.errno not in _OF_A_PLACE:
            raise
        what = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
        print(f"zerogap {parsed.command}: {what}; check the path, its permissions and the room on its disk (--traceback shows where it happened)", file=sys.stderr)  # fmt: skip
        return 2
