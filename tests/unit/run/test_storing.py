import pytest
from helpers.file_limit import file_limit

from zerogap.config.run import RunSection
from zerogap.errors import ConfigError, RunFolderError
from zerogap.run import storing as storing_module
from zerogap.run.storing import DiskNeed, storing
from zerogap.run_folder import RunFolder

GB = 10**9


def need(**section):
    return DiskNeed.of(RunSection(dir="r", **section), checkpoint=16 * GB, export=5 * GB)


@pytest.mark.parametrize(
    ("section", "at_end", "at_most"),
    [
        ({"steps": 100, "checkpoint_every": 10}, 2 * 16 + 5, 3 * 16),
        ({"steps": 100, "checkpoint_every": 10, "keep_checkpoints": 5}, 5 * 16 + 5, 6 * 16),
        ({"steps": 20, "checkpoint_every": 10}, 2 * 16 + 5, 2 * 16 + 5),
        ({"steps": 15, "checkpoint_every": 10, "keep_checkpoints": 1}, 16 + 5, 2 * 16),
        ({"steps": 5, "checkpoint_every": 10}, 16 + 5, 16 + 5),
        ({"steps": 5, "checkpoint_every": 0}, 16 + 5, 16 + 5),
    ],
)
def test_what_a_run_needs(section, at_end, at_most):
    found = need(**section)
    assert (found.at_end, found.at_most) == (at_end * GB, at_most * GB)


def test_what_the_folder_already_holds_is_room(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    small = DiskNeed.of(RunSection(dir="r", steps=1), checkpoint=900, export=100)

    def free(num_bytes):
        usage = storing_module.shutil.disk_usage(tmp_path)._replace(free=num_bytes)
        return lambda _: usage

    monkeypatch.setattr(storing_module.shutil, "disk_usage", free(999))
    with pytest.raises(ConfigError, match=r"needs 0\.0 MB there \(1 checkpoint of .* are free; make room, lower run.keep_checkpoints"):  # fmt: skip
        small.check(folder)
    (folder.checkpoints / "step_000001").mkdir(parents=True)
    (folder.checkpoints / "step_000001" / "x").write_bytes(b"1")
    assert small.check(folder).startswith("disk: ")


def test_the_systems_reason_is_part_of_the_message(tmp_path):
    path = tmp_path / "x"
    with file_limit(100), pytest.raises(RunFolderError, match=r"/x cannot be written \(File too large\)"):  # fmt: skip
        with storing(path):
            path.write_bytes(b"x" * 200)
    with pytest.raises(RunFolderError, match=r"cannot be written \(No such file or directory\)"):
        with storing(path):
            (tmp_path / "none" / "x").write_bytes(b"x")
    with pytest.raises(ZeroDivisionError), storing(path):
        _ = 1 / 0
