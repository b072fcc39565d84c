"""An engine over a two-layer random model, and prompts for it."""

import numpy as np
import torch

from helpers.packed_rows import PackedRows
from helpers.tiny_models import tiny_model
from zerogap.engine import Engine
from zerogap.models import CausalLM
from zerogap.types import GenerateOutput, GenerateRequest, SamplingParams

EOS = 2


def tiny_engine(model: CausalLM | None = None, **changes) -> Engine:
    """Room for everything; ``changes`` are arguments of Engine."""
    defaults = {
        "kv_cache_tokens": 4096,
        "max_running": 32,
        "max_scheduled_tokens": 256,
        "eos_token_ids": (EOS,),
    }
    return Engine(model or tiny_model(), **defaults | changes)


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random ids of the tiny model, without its special ones."""
    return tuple(np.random.default_rng(seed).integers(3, 97, length).tolist())


def request(input_ids=None, *, rid: str | None = None, **params) -> GenerateRequest:
    """A request of 20 tokens with seed 7; ``params`` are fields of SamplingParams."""
    named = {} if rid is None else {"rid": rid}
    return GenerateRequest(
        input_ids=prompt(21) if input_ids is None else tuple(input_ids),
        sampling_params=SamplingParams(
            **{"max_new_tokens": 20, "sampling_seed": 7, "ignore_eos": True} | params
        ),
        **named,
    )


def reported(outputs: list[GenerateOutput]) -> list[dict[str, np.ndarray]]:
    """What must have the same bits however the tokens were computed."""
    return [
        {
            "output_ids": output.output_ids,
            "output_log_probs": output.output_log_probs,
            "kept_log_mass": output.kept_log_mass,
        }
        for output in outputs
    ]


@torch.no_grad()
def logits_of(model: CausalLM, input_ids, output_ids) -> np.ndarray:
    """float64 [C, V]: what each output token was drawn from, by one packed forward without pages."""
    ids = [*map(int, input_ids), *map(int, output_ids)]
    logits = PackedRows([ids]).logits(model)
    return logits[len(input_ids) - 1 : len(ids) - 1].double().numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def chosen(log_probs: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The entry of each row's id, as float32."""
    return log_probs[np.arange(len(ids)), ids].astype(np.float32)


def blind_to_changes(engine: Engine) -> None:
    """Plant a fault: the engine takes the weights as they are now for those of its version."""
    engine._num_changes = engine._count_changes()
