"""[evaluate]: evaluation on held-out prompts, before the first step, at intervals, and after the last."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.config.sampling import SamplingConfig
from zerogap.config.section import Section


class EvaluateConfig(Section):
    """``eval/reward/mean`` is the mean reward of greedy answers, or of sampled ones when greedy is off."""

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
