"""Small configurations for tests."""

from typing import Any

from zerogap.config import RunConfig

TINY_POLICY: dict[str, Any] = {
    "tokenizer": "byte",
    "init": {
        "family": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_positions": 512,
    },
}
"""[model]: random weights of two layers on bytes; its passes take milliseconds."""


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
