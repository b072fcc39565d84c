"""Sampling parameters of one request."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from zerogap.errors import InvalidRequest

GREEDY_TEMPERATURE = 1e-6
"""Below this temperature decoding is greedy and log-probs are at temperature 1."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to sample, and when to stop. Names and defaults are SGLang's.

    Order: penalties and ``logit_bias`` change the logits, then temperature, ``top_k``, ``top_p`` (of what top_k kept,
    renormalised) and ``min_p``. Reported log-probs are after penalties and temperature, over the whole vocabulary;
    ``kept_log_mass`` says what truncation kept.

    Example:
        ``SamplingParams(temperature=0.7, max_new_tokens=64, stop=("</answer>",), sampling_seed=3)``
    """

    max_new_tokens: int = 128
    """Sample at most this many tokens; 0 only scores."""
    min_new_tokens: int = 0
    """Until this many tokens, stop ids are banned and stop strings ignored."""
    temperature: float = 1.0
    """Logits are divided by it; below 1e-6 means greedy."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose mass reaches this."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most likely token's probability."""
    frequency_penalty: float = 0.0
    """Subtracted from a logit for each time the token was sampled in this completion."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token sampled in this completion."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or completion are divided (if positive) or multiplied by this."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    stop: tuple[str, ...] = ()
    """Strings that end the completion when they appear in its text."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the completion, in addition to the model's."""
    ignore_eos: bool = False
    """Do not stop at the model's own end-of-sequence ids (stop_token_ids still stop)."""
    no_stop_trim: bool = False
    """Keep the matched stop string in ``text`` (ids are always kept)."""
    skip_special_tokens: bool = True
    """Leave special tokens out of ``text``."""
    sampling_seed: int | None = None
    """Seed of the noise; with the completion's index and the position it fixes each draw. None: the engine's."""
    n: int = 1
    """Number of completions of the prompt."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(map(int, self.stop_token_ids)))
        for name, is_ok, allowed in self._rules():
            if not is_ok:
                msg = f"{name} = {getattr(self, name)!r} is not allowed: it must be {allowed}"
                raise InvalidRequest(msg)

    def _rules(self) -> list[tuple[str, bool, str]]:
        most = self.max_new_tokens
        are_ids = all(isinstance(i, int) and i >= 0 for i in self.logit_bias)
        is_text = all(isinstance(s, str) and s for s in self.stop)
        return [
            ("max_new_tokens", most >= 0, "0 or more"),
            (
                "min_new_tokens",
                0 <= self.min_new_tokens <= most,
                f"between 0 and max_new_tokens ({most})",
            ),
            (
                "temperature",
                0 <= self.temperature < math.inf,
                "0 (greedy) or a positive finite number",
            ),
            ("top_k", self.top_k == -1 or self.top_k >= 1, "-1 (all) or at least 1"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p < 1, "in [0, 1)"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "in [-2, 2]"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "in [-2, 2]"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 2, "in (0, 2]"),
            ("logit_bias", are_ids, "a mapping from token id (0 or more) to number"),
            ("stop", is_text, "non-empty strings"),
            ("stop_token_ids", all(i >= 0 for i in self.stop_token_ids), "ids of 0 or more"),
            ("n", self.n >= 1, "at least 1"),
        ]

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always chosen."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def score_temperature(self) -> float:
        """Temperature of the reported log-probs (1 when greedy)."""
        return 1.0 if self.is_greedy else self.temperature

    @property
    def edits_logits(self) -> bool:
        """Whether penalties, biases or banned ids change the logits that log-probs are computed from."""
        return bool(
            self.frequency_penalty
            or self.presence_penalty
            or self.repetition_penalty != 1
            or self.logit_bias
            or self.min_new_tokens
        )

    @property
    def truncates(self) -> bool:
        """Whether tokens are drawn from only part of the vocabulary."""
        return self.top_k != -1 or self.top_p < 1 or self.min_p > 0
