"""[obs]: what a run writes besides metrics.jsonl and its checkpoints."""

from pydantic import Field

from zerogap.config.section import Section


class ObsConfig(Section):
    """Records for people; none of them changes the run."""

    tensorboard: bool = False
    """Write metrics for TensorBoard into the run's folder as well (needs the extra ``tensorboard``)."""
    rollouts_every: int = Field(1, ge=0)
    """Keep the rollouts of every so many steps on disk; 0 keeps none."""
