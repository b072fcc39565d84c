"""Sampling parameters of a recipe."""

from collections.abc import Iterator

from zerogap.config.section import Integers, Section, Strings
from zerogap.errors import InvalidRequest
from zerogap.types import SamplingParams


class SamplingConfig(Section):
    """How to sample and when to stop; the allowed values are those of ``types.SamplingParams``."""

    max_new_tokens: int = 256
    """Maximum length of a completion, in tokens."""
    temperature: float = 1.0
    """Logits are divided by it; 0: greedy."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose total probability reaches this; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens with at least this fraction of the top probability; 0 keeps all."""
    stop: Strings = ()
    """Strings that end a completion, in addition to the model's end tokens."""
    stop_token_ids: Integers = ()
    """Token ids that end a completion, in addition to the model's end tokens."""

    def params(self, *, n: int = 1, seed: int | None = None) -> SamplingParams:
        """These values for a request of ``n`` completions."""
        return SamplingParams(**self.model_dump(), n=n, sampling_seed=seed)

    def greedy(self) -> "SamplingConfig":
        """The same limits and stops, at temperature 0 without truncation."""
        return SamplingConfig(
            max_new_tokens=self.max_new_tokens,
            temperature=0.0,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
        )

    def problems(self) -> Iterator[str]:
        """Values that the engine would refuse; completions without tokens."""
        if self.max_new_tokens < 1:
            yield f"max_new_tokens = {self.max_new_tokens}: a completion needs at least one token; set 1 or more"
            return
        try:
            self.params()
        except InvalidRequest as error:
            yield str(error)
