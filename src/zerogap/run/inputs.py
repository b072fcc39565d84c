"""What a run reads by path: data, models and the modules of the user's functions. A resumed run must read the same.

``inputs.json`` has a digest of each file. Other data or another model is refused, since the finished steps belong to what was
read before. A changed function is said: whoever mends a reward in the middle of a run wants the rest of it to use it. Only the
module's own file is compared, not what it imports.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from zerogap.algorithms import module_file
from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.models import resolve_source
from zerogap.obs import written_whole
from zerogap.run.digests import digest_of_file, digests_of_files
from zerogap.run.storing import storing
from zerogap.run_folder import RunFolder

Digests = Mapping[str, Mapping[str, str]]
"""By recipe key: digests of files by name."""


def check_inputs(folder: RunFolder, config: RunConfig) -> str | None:
    """Record the inputs of a new run; compare those of one that has a checkpoint.

    Returns:
        A line about changed functions; None if there are none.

    Raises:
        CheckpointError: data or a model are not those of the run's finished steps, or nobody knows what those were.
        ModelError, MissingExtra: a model cannot be found.
    """
    functions = {**config.user_functions, **config.reward_functions}
    found = _digests(config, functions)
    changed_functions: list[str] = []
    if folder.latest_checkpoint() is not None:
        changed = _changes(_recorded(folder), found)
        changed_functions = [text for key, text in changed.items() if key in functions]
        if others := [text for key, text in changed.items() if key not in functions]:
            msg = f"{folder.path} holds a run that read something else ({'; '.join(others)}), so its checkpoint cannot be continued; restore the files, set another run.dir, or delete the folder"
            raise CheckpointError(msg)
    with storing(folder.inputs), written_whole(folder.inputs) as partial:
        partial.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if not changed_functions:
        return None
    return f"{'; '.join(changed_functions)}: the steps from here on use what is there now"


def _digests(config: RunConfig, functions: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Of every input that exists as a file or folder; who reads one that does not exist says so."""
    paths = {key: Path(path) for key, path in _data_paths(config).items()}
    paths |= {key: resolve_source(source) for key, source in _models(config).items()}
    paths |= {key: path for key, name in functions.items() if (path := module_file(name))}
    return {key: _of(path) for key, path in paths.items() if path.exists()}


def _data_paths(config: RunConfig) -> dict[str, str]:
    given = {key: getattr(config.data, key, None) for key in ("path", "eval_path")}
    return {f"data.{key}": path for key, path in given.items() if path is not None}


def _models(config: RunConfig) -> dict[str, str]:
    teacher, tokenizer = config.teacher, config.model.tokenizer
    given = {
        "model.path": config.model.path,
        "model.tokenizer": None if tokenizer == "byte" else tokenizer,
        "teacher.path": None if teacher is None else teacher.path,
    }
    return {key: path for key, path in given.items() if path is not None}


def _of(path: Path) -> dict[str, str]:
    return digests_of_files(path) if path.is_dir() else {path.name: digest_of_file(path)}


def _recorded(folder: RunFolder) -> Digests:
    try:
        return json.loads(folder.inputs.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{folder.path} holds checkpoints, but {folder.inputs.name} cannot be read ({error}), so nobody knows which data they belong to; restore the file, set another run.dir, or delete the folder"
        raise CheckpointError(msg) from error


def _changes(before: Digests, now: Digests) -> dict[str, str]:
    """By recipe key, what is different. The recipe itself is equal, so a key of one side only is a file that came or went."""
    changes = {}
    for key in sorted(before.keys() | now.keys()):
        then, here = before.get(key, {}), now.get(key, {})
        names = sorted(n for n in then.keys() | here.keys() if then.get(n) != here.get(n))
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            changes[key] = f"{key}: {names[0]}{more} changed since"
    return changes
