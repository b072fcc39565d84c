"""[rollout]: how many completions a step draws, and how."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.config.sampling import SamplingConfig
from zerogap.config.section import Section


class RolloutConfig(Section):
    """A step draws ``prompts_per_step * group_size`` completions."""

    prompts_per_step: int = Field(16, ge=1)
    """Prompts of a step; each becomes one group."""
    group_size: int = Field(8, ge=1)
    """Completions of a prompt; rewards are compared within them."""
    lag: int = Field(0, ge=0)
    """Sample with weights this many steps older than those that train, as a pipeline of that depth would; needs copies."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""

    def problems(self) -> Iterator[str]:
        """Sampling that gives a group no signal."""
        sampling = self.sampling
        if sampling.params().is_greedy:
            yield f"sampling.temperature = {sampling.temperature}: greedy completions of one prompt are all the same, so a group carries no signal; set a temperature above 0, such as 1.0"
