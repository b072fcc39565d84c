"""The rewards of a recipe."""

from zerogap.config import RunConfig
from zerogap.data import PromptSets
from zerogap.rollout import Rewards, build_rewards


def recipe_rewards(config: RunConfig, sets: PromptSets) -> Rewards:
    """The rewards of a recipe; the caller closes them. ``sets`` are its prompts. Errors as in ``build_rewards``."""
    answer_name = getattr(config.data, "answer_field", None)
    return build_rewards(config.reward, sets, answer_name=answer_name)
