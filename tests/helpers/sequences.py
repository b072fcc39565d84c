"""Sequences as the engine has them, without an engine."""

import numpy as np

from zerogap.engine.logit_edits import LogitEdits
from zerogap.engine.sequence import Sequence
from zerogap.engine.stopping import StopConditions
from zerogap.types import SamplingParams


def make_sequence(prompt_ids, *, index=0, seed=0, score=None, num_output=0, **params) -> Sequence:
    """One that waits; ``num_output`` tokens were drawn: the ids from 0 on."""
    given = SamplingParams(**params)
    prompt_ids = np.array(prompt_ids, np.int32)
    made = Sequence(
        rid="s",
        index=index,
        order=(0, index),
        prompt_ids=prompt_ids,
        params=given,
        seed=seed,
        stop=StopConditions(given, eos_token_ids=frozenset(), detokenizer=None),
        edits=LogitEdits(given, prompt_ids, (2,)) if given.edits_logits else None,
        score=score,
    )
    for token in range(num_output):
        made.append_token(token, -1.0, 0.0, 0)
    return made
