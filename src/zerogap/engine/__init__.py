"""Token ids in; ids, log-probs, weight versions and text out, of one model in this process.

Paged KV cache, prefix cache by weight version, one token-budget scheduler for prompts, chunks, decode and
recomputation, siblings that share their prompt and are computed once while they draw the same tokens, decode
steps that are recorded and repeated. A token's log-prob does not depend on what is computed beside it, and
``score`` gives the same bits again. Nothing here trains, tokenises or knows of rewards.
"""

from zerogap.engine.async_engine import AsyncEngine
from zerogap.engine.core import EngineCore, PauseMode
from zerogap.engine.engine import Engine
from zerogap.engine.outputs import GenerateProgress
from zerogap.engine.requests import Limits
from zerogap.engine.runner import ModelRunner, Runner, StepResult
from zerogap.engine.stats import EngineStats

__all__ = [
    "AsyncEngine",
    "Engine",
    "EngineCore",
    "EngineStats",
    "GenerateProgress",
    "Limits",
    "ModelRunner",
    "PauseMode",
    "Runner",
    "StepResult",
]
