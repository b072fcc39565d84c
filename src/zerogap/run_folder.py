"""Paths in a run's folder. Every room that reads a run starts here; no file is opened."""

from pathlib import Path

CHECKPOINT_STATE = "state.json"
"""Written last into a checkpoint; a folder without it is incomplete."""


class RunFolder:
    """Paths of one run. The folder only grows, except for old checkpoints."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = path / ".lock"
        self.config = path / "config.json"
        self.inputs = path / "inputs.json"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.ledger = path / "ledger.jsonl"
        self.versions = path / "versions.jsonl"
        self.alarms = path / "alarms.jsonl"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.export = path / "export"

    def rollouts(self, step: int) -> Path:
        """Folder with the rollouts of a step."""
        return self.path / "rollouts" / f"step_{step:06d}"

    def not_trained(self, step: int) -> Path:
        """Folder with the rollouts that a step drew and did not train on, because of dynamic sampling; may be absent."""
        return self.path / "not_trained" / f"step_{step:06d}"

    def checkpoint(self, step: int) -> Path:
        """Folder with the checkpoint of a step."""
        return self.checkpoints / checkpoint_name(step)

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, if any."""
        found = list_checkpoints(self.checkpoints)
        return found[-1] if found else None


def checkpoint_name(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step_{step:06d}"


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint's or rollouts' folder."""
    return int(path.name.removeprefix("step_"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints in ``folder``, oldest first."""
    return sorted(path for path in folder.glob("step_*") if (path / CHECKPOINT_STATE).exists())
