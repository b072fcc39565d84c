"""Grade any model on a recipe's held-out prompts."""

from contextlib import closing

from rich.console import Console

from zerogap.config import ModelSection, RunConfig
from zerogap.data import PromptEncoder, build_prompt_sets
from zerogap.engine import AsyncEngine
from zerogap.errors import ConfigError
from zerogap.obs import Progress, StepMetrics
from zerogap.rollout import SingleTurn, build_rewards
from zerogap.run.collectors import Collectors
from zerogap.run.evaluate import Evaluation
from zerogap.run.machine import apply_threads
from zerogap.run.policy import load_policy
from zerogap.run.progress import show_generation


def evaluate_model(model: str, config: RunConfig, *, quiet: bool = False) -> dict[str, float]:
    """The ``eval/*`` metrics of ``model`` on the evaluation prompts of ``config``.

    Raises:
        ConfigError: the recipe has no evaluation prompts.
    """
    apply_threads()
    sets = build_prompt_sets(config.data)
    if not len(sets.evaluation):
        msg = "data has no evaluation prompts; set data.eval_size, or data.eval_path for files"
        raise ConfigError(msg)
    policy = load_policy(
        ModelSection(path=model, tokenizer=config.model.tokenizer if config.model.path else None),
        seed=config.run.seed,
    )
    rewards = build_rewards(config.reward, score=sets.score)
    evaluation = Evaluation.of_recipe(config, sets.evaluation)
    metrics = StepMetrics()
    progress = Progress(Console(stderr=True), is_quiet=quiet)
    with (
        closing(rewards),
        AsyncEngine(policy.engine(config.engine, seed=config.run.seed)) as engine,
        progress.phase("evaluate", total=evaluation.num_completions, unit="completions") as phase,
    ):
        make_collector = Collectors(
            policy=policy,
            generator=engine,
            environment=SingleTurn(PromptEncoder(policy.tokenizer, config.prompt), rewards),
            seed=config.run.seed,
        )
        evaluation.run(make_collector, metrics=metrics, on_progress=show_generation(phase))
    return metrics.reduce()
