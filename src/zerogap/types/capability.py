"""Capabilities of generators, and those that a request needs."""

from enum import StrEnum

from zerogap.types.sampling import SamplingParams


class Capability(StrEnum):
    """A feature that some engines lack. A generator declares its capabilities; other requests are refused early."""

    LOG_PROBS = "log_probs"
    """Reports the log-prob of every drawn token, after temperature, over the whole vocabulary."""
    KEPT_LOG_MASS = "kept_log_mass"
    """Truncates (top_k, top_p, min_p) and reports the log mass that it kept."""
    SEEDS = "seeds"
    """The same request with the same seed gives the same tokens."""
    SEVERAL_COMPLETIONS = "several_completions"
    GREEDY = "greedy"
    STOP_STRINGS = "stop_strings"
    STOP_TOKEN_IDS = "stop_token_ids"
    IGNORE_EOS = "ignore_eos"
    MIN_NEW_TOKENS = "min_new_tokens"
    PENALTIES = "penalties"
    LOGIT_BIAS = "logit_bias"


def needed_capabilities(params: SamplingParams) -> frozenset[Capability]:
    """The capabilities that these parameters need."""
    asked = {
        Capability.KEPT_LOG_MASS: params.truncates,
        Capability.SEEDS: params.sampling_seed is not None,
        Capability.SEVERAL_COMPLETIONS: params.n > 1,
        Capability.GREEDY: params.is_greedy,
        Capability.STOP_STRINGS: bool(params.stop),
        Capability.STOP_TOKEN_IDS: bool(params.stop_token_ids),
        Capability.IGNORE_EOS: params.ignore_eos,
        Capability.MIN_NEW_TOKENS: params.min_new_tokens > 0,
        Capability.PENALTIES: (params.frequency_penalty, params.presence_penalty) != (0, 0)
        or params.repetition_penalty != 1,
        Capability.LOGIT_BIAS: bool(params.logit_bias),
    }
    return frozenset(capability for capability, is_asked in asked.items() if is_asked)
