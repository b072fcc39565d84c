"""[rollout] and [evaluate]: what is sampled for training and for evaluation, and how."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.errors import InvalidRequest
from zerogap.section import Integers, Section, Strings
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


class RolloutConfig(Section):
    """A step samples ``prompts_per_step * group_size`` completions."""

    prompts_per_step: int = Field(16, ge=1)
    """Prompts per step; each gives one group."""
    group_size: int = Field(8, ge=1)
    """Completions per prompt; rewards are compared within the group."""
    lag: int = Field(0, ge=0)
    """Sample with weights that are this many steps old, as in a pipeline of that depth; needs copies of the weights."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are sampled."""

    def problems(self) -> Iterator[str]:
        """Greedy sampling, which gives groups no signal."""
        sampling = self.sampling
        if sampling.params().is_greedy:
            yield f"sampling.temperature = {sampling.temperature}: greedy completions of a prompt are all equal, so groups have no signal; set a temperature above 0, such as 1.0"


class EvaluateConfig(Section):
    """Evaluation on held-out prompts, before the first step, at intervals, and after the last.

    ``eval/reward/mean`` is the mean reward of greedy answers, or of sampled ones when greedy is off.
    """

    every: int = Field(0, ge=0)
    """Evaluate every this many steps; 0: never."""
    max_prompts: int | None = Field(None, ge=1)
    """Use only this many evaluation prompts, the first ones; none: all."""
    greedy: bool = True
    """Answer each prompt once at temperature 0."""
    samples: int = Field(0, ge=0)
    """Also sample this many completions of each prompt."""
    sampling: SamplingConfig | None = None
    """How evaluation completions are sampled; none: as in rollout.sampling."""

    def problems(self) -> Iterator[str]:
        """Neither greedy nor sampled completions."""
        if not self.greedy and not self.samples:
            yield "greedy = false, samples = 0: an evaluation needs completions; set evaluate.greedy = true or evaluate.samples = 1 or more"
