"""Generation by one model in this process: token ids go in; ids, log-probs, weight versions and text come out.

The KV cache is paged, and the prefix cache belongs to one weight version. One scheduler with a token budget serves
prompts, chunks, decode and recomputation. Siblings share their prompt, and one row serves all that have drawn the same
tokens. Decode steps run as captured graphs. All passes are batch-invariant: a token's log-prob does not depend on the
rest of the batch, and ``score`` gives the same bits again. Nothing here trains, tokenises or knows of rewards.
"""

from zerogap.engine.async_engine import AsyncEngine
from zerogap.engine.core import EngineCore, PauseMode
from zerogap.engine.engine import Engine, GenerateProgress
from zerogap.engine.prompts import Messages, Prompt
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
    "Messages",
    "ModelRunner",
    "PauseMode",
    "Prompt",
    "Runner",
    "StepResult",
]
