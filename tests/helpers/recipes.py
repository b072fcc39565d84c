"""Small configurations for tests."""

from typing import Any

from zerogap.config import RunConfig


def run_tree(**sections: Any) -> dict[str, Any]:
    """The least a recipe needs, as nested dicts, with whole sections replaced by ``sections``."""
    return {
        "run": {"dir": "runs/test", "steps": 20},
        "model": {"path": "some/model"},
        "data": {"kind": "builtin", "name": "multiplication"},
        "reward": {"kind": "last_number"},
    } | sections


def run_config(**sections: Any) -> RunConfig:
    """``run_tree`` validated."""
    return RunConfig.model_validate(run_tree(**sections))
