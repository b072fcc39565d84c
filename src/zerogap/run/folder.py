"""Checks that a run in a folder has the same recipe."""

import json
from pathlib import Path
from typing import Any

from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.obs import written_whole
from zerogap.report.data import flatten
from zerogap.run.machine import describe_environment
from zerogap.run.storing import storing
from zerogap.run_folder import RunFolder

_MAY_CHANGE = (
    "run.dir",
    "run.steps",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "obs.",
    "engine.kv_cache",
    "engine.max_",
    "engine.prefix_cache",
    "ledger.",
    "mismatch.",
    "watch.",
)
"""Keys that may differ when a run resumes: they change no token and no gradient of the finished steps. ``run.steps`` may
change only with a constant schedule. Applied remedies stay, so a run that its budget ended continues with a higher one."""


def open_run_folder(folder: RunFolder, config: RunConfig) -> None:
    """Check that a run in the folder has this recipe; write config and environment.

    Raises:
        CheckpointError: the folder holds a run of another recipe, and the message lists the different keys; or one whose
            recipe cannot be read.
        RunFolderError: a file cannot be written.
    """
    wanted = config.model_dump(mode="json")
    if folder.latest_checkpoint() is not None:
        _check_same(folder.path, _recorded(folder), wanted)
    _write_json(folder.config, wanted)
    _write_json(folder.environment, describe_environment())


def _recorded(folder: RunFolder) -> dict[str, Any]:
    """The recipe of the run in the folder."""
    try:
        return json.loads(folder.config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{folder.path} holds checkpoints, but {folder.config.name} cannot be read ({error}), so nobody knows the recipe that they belong to; restore the file, set another run.dir, or delete the folder"
        raise CheckpointError(msg) from error


def _check_same(path: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    before, now = flatten(found), flatten(wanted)
    differ = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
    is_constant = wanted["train"]["schedule"] == "constant"
    blocked = [
        f"{k}: {before.get(k)!r} then, {now.get(k)!r} now"
        for k in differ
        if not k.startswith(_MAY_CHANGE) or (k == "run.steps" and not is_constant)
    ]
    if blocked:
        msg = f"{path} holds a run of another recipe ({'; '.join(blocked)}), so its checkpoint cannot be continued; set another run.dir, or delete the folder"
        raise CheckpointError(msg)


def _write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with storing(path), written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
