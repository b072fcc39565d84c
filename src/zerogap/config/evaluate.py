"""[evaluate]: held-out prompts, answered before the first step, every so many steps, and after the last."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.config.sampling import SamplingConfig
from zerogap.config.section import Section


class EvaluateConfig(Section):
    """``eval/reward/mean`` is the greedy answers' mean reward, or the sampled ones' when greedy is off."""

    every: int = Field(0, ge=0)
    """Evaluate every so many steps; 0 never during a run."""
    max_prompts: int | None = Field(None, ge=1)
    """Use the first so many evaluation prompts; none: all."""
    greedy: bool = True
    """Answer each prompt once at temperature 0."""
    samples: int = Field(0, ge=0)
    """Besides, draw so many completions of each prompt."""
    sampling: SamplingConfig | None = None
    """How evaluation completions are drawn; none: as in rollout.sampling."""

    def problems(self) -> Iterator[str]:
        """An evaluation without completions."""
        if not self.greedy and not self.samples:
            yield "greedy = false, samples = 0: an evaluation needs completions; set evaluate.greedy = true or evaluate.samples = 1 or more"
