import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from zerogap.errors import ConfigError, RunFolderError
from zerogap.run.lock import owned
from zerogap.run_folder import RunFolder

HOLDER = """
import sys, time
from pathlib import Path
from zerogap.run.lock import owned
from zerogap.run_folder import RunFolder
with owned(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_one_owner_at_a_time_which_the_error_names(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    with owned(folder):
        with pytest.raises(RunFolderError, match=rf"in use by process {os.getpid()}; .* another run.dir"):  # fmt: skip
            with owned(folder):
                pass
        with owned(RunFolder(tmp_path / "other")):
            pass
    with owned(folder):
        pass


def test_a_killed_owner_leaves_the_folder_free(tmp_path):
    folder = RunFolder(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(RunFolderError), owned(folder):
                pass
        finally:
            holder.send_signal(signal.SIGKILL)
    with owned(folder):
        assert folder.lock.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("place", ["file", "file/run"])
def test_a_place_where_no_folder_can_be_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.dir = .*/file.* set another run\.dir"):
        with owned(RunFolder(tmp_path / place)):
            pass


def test_a_file_system_without_locks_is_said_and_used(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with (
        pytest.warns(UserWarning, match="has no locks .* a second run in this folder"),
        owned(RunFolder(tmp_path)),
    ):
        pass
