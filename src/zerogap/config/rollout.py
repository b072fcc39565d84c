"""[rollout]: how many completions a step samples, and how."""

from collections.abc import Iterator

from pydantic import Field

from zerogap.config.sampling import SamplingConfig
from zerogap.config.section import Section


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
