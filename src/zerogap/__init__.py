"""zerogap: RL post-training of language models in which trainer and inference engine are one policy.

::

    import zerogap

    engine = zerogap.load_policy("Qwen/Qwen3-0.6B").engine()
    for output in engine.generate("The capital of France is", zerogap.SamplingParams(n=4, max_new_tokens=8)):
        print(output.text)

A name is imported when it is first used, so that ``import zerogap`` and ``zerogap --help`` stay fast. Everything else is in
the rooms (``zerogap.run.train`` runs a recipe); ``docs/architecture.md`` has the map.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerogap.algorithms import Algorithm
    from zerogap.config import EngineConfig, ModelSection, RunConfig, TrainConfig
    from zerogap.config.load import load_config
    from zerogap.engine import AsyncEngine, Engine
    from zerogap.errors import ZerogapError
    from zerogap.run import load_policy
    from zerogap.train import NativeTrainer
    from zerogap.types import GenerateOutput, GenerateRequest, Sample, SamplingParams

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "AsyncEngine",
    "Engine",
    "EngineConfig",
    "GenerateOutput",
    "GenerateRequest",
    "ModelSection",
    "NativeTrainer",
    "RunConfig",
    "Sample",
    "SamplingParams",
    "TrainConfig",
    "ZerogapError",
    "load_config",
    "load_policy",
]

_ROOM_OF = {
    "Algorithm": "algorithms",
    "AsyncEngine": "engine",
    "Engine": "engine",
    "EngineConfig": "config",
    "GenerateOutput": "types",
    "GenerateRequest": "types",
    "ModelSection": "config",
    "NativeTrainer": "train",
    "RunConfig": "config",
    "Sample": "types",
    "SamplingParams": "types",
    "TrainConfig": "config",
    "ZerogapError": "errors",
    "load_config": "config.load",
    "load_policy": "run",
}


def __getattr__(name: str) -> object:
    if name not in _ROOM_OF:
        msg = f"module 'zerogap' has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"zerogap.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
