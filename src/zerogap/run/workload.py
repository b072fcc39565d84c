"""The data of a run: prompts for training and evaluation, their encoding, and the rewards of answers."""

from collections.abc import Sequence

from zerogap.config import RunConfig
from zerogap.data import (
    AnswerEncoder,
    PromptEncoder,
    PromptItem,
    PromptSets,
    PromptStream,
    check_prompt_lengths,
)
from zerogap.rollout import (
    Collector,
    Demonstrations,
    Generator,
    Hints,
    Rewards,
    SingleTurn,
)
from zerogap.run.evaluate import Evaluation
from zerogap.run.policy import Policy
from zerogap.types import SamplingParams


class Workload:
    """Data and rewards of a recipe."""

    def __init__(
        self, config: RunConfig, policy: Policy, *, sets: PromptSets, rewards: Rewards
    ) -> None:
        """Check that every prompt fits.

        Args:
            config: the recipe.
            policy: encodes the prompts.
            sets: the recipe's prompts.
            rewards: the recipe's; the caller closes them.

        Raises:
            DataError, ConfigError: a prompt is too long for its completion, or an answer cannot train.
        """
        self._policy, self._seed = policy, config.run.seed
        self.encode = PromptEncoder(policy.tokenizer, config.prompt)
        self.items = sets.train
        """Training prompts."""
        self.stream = PromptStream(sets.train, seed=config.run.seed, shuffle=sets.shuffle)
        self.evaluation = Evaluation.of_recipe(config, sets.evaluation)
        self._check_lengths(config, [*sets.train, *self.evaluation.items])
        self.answers = self._build_answers(config)
        """Makes samples of reference answers; None if the loss trains on completions."""
        self.hints = self._build_hints(config)
        """What the teacher reads, if it has hints."""
        self._rewards = rewards

    def collector(
        self,
        generator: Generator,
        sampling: SamplingParams,
        group_size: int,
    ) -> Collector:
        """A collector that draws ``group_size`` rollouts of each prompt."""
        return Collector(
            generator,
            SingleTurn(self.encode, self._rewards),
            decode=self._policy.tokenizer.decode,
            vocab_limit=self._policy.vocab_limit,
            sampling=sampling,
            group_size=group_size,
            seed=self._seed,
        )

    def _build_answers(self, config: RunConfig) -> Demonstrations | None:
        if config.loss.trains_on_completions:
            return None
        policy = self._policy
        answers = Demonstrations(
            encode=self.encode,
            encode_answer=AnswerEncoder(
                policy.tokenizer, chat=config.prompt.chat, eos_token_ids=policy.eos_token_ids
            ),
            compares_answers=config.loss.compares_answers,
        )
        answers.check(self.items, max_tokens=policy.model.config.max_positions)
        return answers

    def _build_hints(self, config: RunConfig) -> Hints | None:
        if config.teacher is None or config.teacher.hint is None:
            return None
        hints = Hints(
            config=config.teacher.hint,
            encode=self.encode.with_hint,
            max_tokens=self._policy.model.config.max_positions,
        )
        hints.check(self.items, max_new_tokens=config.rollout.sampling.max_new_tokens)
        return hints

    def _check_lengths(self, config: RunConfig, items: Sequence[PromptItem]) -> None:
        room = self._policy.model.config.max_positions
        longest = max(
            config.rollout.sampling.max_new_tokens, config.evaluate_sampling.max_new_tokens
        )
        check_prompt_lengths(items, self.encode, max_prompt_tokens=room - longest)
