"""The whole recipe: all sections, and the checks between them."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.algorithms import (
    AcceptanceConfig,
    Algorithm,
    AnyAdvantage,
    ClipLoss,
    CorrectionsConfig,
    EntropyConfig,
    GroupAdvantage,
    KLConfig,
    LossConfig,
    MaxRLAdvantage,
    TeacherConfig,
    WeightCorrection,
    algorithm_problems,
)
from zerogap.config.data import DataConfig, PromptConfig
from zerogap.config.engine import EngineConfig
from zerogap.config.model import ModelSection
from zerogap.config.monitoring import LedgerConfig, MismatchConfig, ObsConfig, WatchConfig
from zerogap.config.reward import RewardConfig, reward_parts, single_rewards
from zerogap.config.rollout import EvaluateConfig, RolloutConfig, SamplingConfig
from zerogap.config.sampling_policy import SamplingPolicyConfig
from zerogap.config.train import TrainConfig
from zerogap.section import Section


class RunSection(Section):
    """[run]: length, seed, folder and checkpoints of the run."""

    dir: str = Field(min_length=1)
    """The run's folder; default ``runs/<name of the recipe>``. An unfinished run of the same recipe in it is resumed."""
    steps: int = Field(ge=1)
    """Number of training steps; each samples, grades and trains once."""
    seed: int = Field(0, ge=0)
    """Seed of random weights, prompt order and sampling."""
    checkpoint_every: int = Field(10, ge=0)
    """Save a checkpoint every this many steps and after the last; 0: only after the last."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the newest checkpoints to keep."""


class RunConfig(Section):
    """One run. Frozen: nothing is adjusted after loading."""

    run: RunSection
    """Length, seed, folder and checkpoints."""
    numerics: Literal["exact", "fast"] = "exact"
    """exact: with the same weights, engine and trainer give every token the same log-prob, bit for bit; fast: each side
    uses the faster GEMM kernels of this machine."""
    model: ModelSection
    """The policy's weights and tokenizer."""
    data: DataConfig
    """Source of the prompts."""
    prompt: PromptConfig = PromptConfig()
    """How a question becomes a prompt."""
    reward: RewardConfig
    """How completions are graded."""
    rollout: RolloutConfig = RolloutConfig()
    """Number of completions, and how they are sampled."""
    sampling_policy: SamplingPolicyConfig = SamplingPolicyConfig()
    """Which completions a step draws, and which of them train."""
    engine: EngineConfig = EngineConfig()
    """Limits of the inference engine."""
    train: TrainConfig = TrainConfig()
    """Optimizer and micro-batches."""
    loss: LossConfig = ClipLoss()
    """Objective."""
    advantage: AnyAdvantage = GroupAdvantage()
    """What a token is worth."""
    kl: KLConfig = KLConfig()
    """Penalty on the distance from a reference policy."""
    entropy: EntropyConfig = EntropyConfig()
    """Entropy in the loss."""
    teacher: TeacherConfig | None = None
    """Distillation."""
    corrections: CorrectionsConfig = CorrectionsConfig()
    """Importance weights and rejection."""
    acceptance: AcceptanceConfig | None = None
    """Undoing updates that cost the engine's policy too much."""
    ledger: LedgerConfig = LedgerConfig()
    """How much is audited to attribute the gap."""
    mismatch: MismatchConfig = MismatchConfig()
    """Budget for the gap."""
    watch: WatchConfig = WatchConfig()
    """Alarms."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """Held-out prompts."""
    obs: ObsConfig = ObsConfig()
    """What is recorded for people."""

    @property
    def algorithm(self) -> Algorithm:
        """The tables that decide a step's gradient, with the corrections that apply."""
        return Algorithm.of(self).model_copy(update={"corrections": self.applied_corrections})

    @property
    def user_functions(self) -> dict[str, str]:
        """Recipe key -> ``module:function``, of the user's own functions that run in the run's process."""
        found = {
            "loss.function": getattr(self.loss, "function", None),
            "advantage.function": getattr(self.advantage, "function", None),
            "obs.on_step": self.obs.on_step,
        }
        return {key: path for key, path in found.items() if path is not None}

    @property
    def reward_functions(self) -> dict[str, str]:
        """The same of those that run in processes of their own."""
        rewards = single_rewards(self.reward).items()
        return {f"{key}.function": r.function for key, r in rewards if r.kind == "import"}

    @property
    def open_sources(self) -> tuple[str, ...]:
        """The settings by which samples may come from another policy than the trainer's; () if none."""
        engine, sources = self.engine, []
        if self.rollout.lag:
            sources.append(f"rollout.lag = {self.rollout.lag}")
        if engine.backend != "zerogap":
            sources.append(f"engine.backend = {engine.backend!r}")
        if engine.dtype not in (None, self.model.dtype):
            sources.append(f"engine.dtype = {engine.dtype!r}")
        if self.numerics == "fast":
            sources.append('numerics = "fast"')
        return tuple(sources) if self.loss.trains_on_completions else ()

    @property
    def has_default_corrections(self) -> bool:
        """Whether importance weights are on that the recipe does not name: samples may be off-policy, and nothing corrects."""
        is_bypass = self.train.old_log_probs == "rollout"
        is_chosen = self.corrections.needs_old_log_probs or not self.corrections.auto
        has_own = self.loss.compares_with_engine
        return bool(self.open_sources) and not (is_bypass or is_chosen or has_own)

    @property
    def applied_corrections(self) -> CorrectionsConfig:
        """The recipe's corrections, or the default ones."""
        if not self.has_default_corrections:
            return self.corrections
        return self.corrections.model_copy(update={"weight": WeightCorrection()})

    @property
    def evaluate_sampling(self) -> SamplingConfig:
        """How evaluation completions are sampled."""
        return self.evaluate.sampling or self.rollout.sampling

    def problems(self) -> Iterator[str]:
        """Values that are valid alone but impossible together."""
        yield from self._group_problems()
        yield from self._length_problems()
        yield from self._policy_problems()
        yield from self._sampling_policy_problems()
        yield from self._answer_problems()
        yield from self._hint_problems()
        yield from self._acceptance_problems()
        yield from self._reward_problems()
        yield from algorithm_problems(self)
        if self.train.warmup_steps >= self.run.steps:
            yield f"train.warmup_steps = {self.train.warmup_steps}: the run has only run.steps = {self.run.steps} and would never leave the warm-up; set fewer warm-up steps or more steps"
        if self.evaluate.every and not self.data.has_evaluation:
            yield f"evaluate.every = {self.evaluate.every}: there are no evaluation prompts; set data.eval_size (or data.eval_path for files), or evaluate.every = 0"

    def _reward_problems(self) -> Iterator[str]:
        """Rewards that the data or the loss has no use for."""
        for key, reward in single_rewards(self.reward).items():
            if reward.kind == "task" and self.data.kind not in ("reasoning_gym", "builtin"):
                yield f'{key}.kind = "task": data.kind = {self.data.kind!r} has no score of its own; set a reward that compares answers, such as "exact"'
            if (
                reward.kind not in ("task", "import")
                and getattr(self.data, "answer_field", "") is None
            ):
                yield f'{key}.kind = {reward.kind!r}: it compares with a reference answer, and data.answer_field is none; name the field, or set {key}.kind = "import"'
        parts = reward_parts(self.reward)
        if self.sampling_policy.overlong is not None and "overlong" in parts:
            yield "reward.parts.overlong: sampling_policy.overlong adds a part of this name; rename yours, or remove one of the two"
        if not self.advantage.compares_within_group:
            for name, part in parts.items():
                if part.normalize == "group":
                    yield f'reward.parts.{name}.normalize = "group": advantage.kind = {self.advantage.kind!r} does not compare completions of one prompt; remove the key, or choose an advantage that does, such as "group"'

    def _group_problems(self) -> Iterator[str]:
        rollout, updates = self.rollout, self.train.updates_per_step
        compares = self.advantage.compares_within_group and self.loss.trains_on_completions
        if rollout.group_size < 2 and compares:
            yield f"rollout.group_size = {rollout.group_size}: advantages compare completions of the same prompt, which takes at least two; set 2 or more"
        if rollout.prompts_per_step % updates:
            yield f"train.updates_per_step = {updates}: rollout.prompts_per_step = {rollout.prompts_per_step} groups cannot be split evenly; set a divisor of it"

    def _policy_problems(self) -> Iterator[str]:
        """Sides that cannot agree; corrections of a gap that cannot exist."""
        is_exact, engine = self.numerics == "exact", self.engine
        if is_exact and engine.backend != "zerogap":
            yield f'engine.backend = {engine.backend!r}: its kernels add in another order than the trainer, so numerics = "exact" is impossible; set numerics = "fast"'
        if is_exact and engine.dtype not in (None, self.model.dtype):
            yield f'engine.dtype = {engine.dtype!r}: the trainer computes in model.dtype = {self.model.dtype!r}, so numerics = "exact" is impossible; set numerics = "fast", or one precision'
        if self.train.old_log_probs == "rollout" and self.corrections.weight is not None:
            yield 'train.old_log_probs = "rollout": the policy ratio then divides by the engine\'s log-probs, so corrections.weight would count the gap twice; remove one of the two (mask, veto and off_policy_kl may stay)'
        if not self.loss.trains_on_completions:
            kind = f"loss.kind = {self.loss.kind!r} trains on the data set's answers"
            if self.train.old_log_probs == "rollout":
                yield f'train.old_log_probs = "rollout": {kind}, which have no rollout log-probs; remove the key'
            if self.rollout.lag:
                yield f"rollout.lag = {self.rollout.lag}: {kind}, so no samples can be old; remove the key"
            if self.sampling_policy != SamplingPolicyConfig():
                yield f"sampling_policy: {kind}, so no completion is drawn for training; remove the table"
            if self.mismatch.budget is not None:
                yield f"mismatch.budget = {self.mismatch.budget}: {kind}, which no engine sampled, so there is no gap to limit; remove the key"

    def _sampling_policy_problems(self) -> Iterator[str]:
        """Parts of the sampling policy that the other tables make impossible or idle."""
        policy, rollout = self.sampling_policy, self.rollout
        dynamic, overlong = policy.dynamic_sampling, policy.overlong
        if dynamic.is_on and rollout.group_size < 2:
            yield f"sampling_policy.dynamic_sampling: with rollout.group_size = {rollout.group_size} no group has two completions to compare, so none ever has a signal; set a group_size of 2 or more, or remove the table"
        if overlong is not None and overlong.buffer_tokens >= rollout.sampling.max_new_tokens:
            yield f"sampling_policy.overlong.buffer_tokens = {overlong.buffer_tokens}: it must be below rollout.sampling.max_new_tokens = {rollout.sampling.max_new_tokens}, or every completion is penalised; set fewer"
        if overlong is not None and not self.advantage.uses_rewards:
            yield f"sampling_policy.overlong: it changes rewards, and advantage.kind = {self.advantage.kind!r} does not train on rewards; remove the table"
        if overlong is not None and isinstance(self.advantage, MaxRLAdvantage):
            yield 'sampling_policy.overlong: its penalty makes rewards negative, and advantage.kind = "maxrl" divides by the mean of rewards of 0 and above; remove the table, or choose another advantage'
        if (
            policy.truncated == "mask"
            and self.advantage.compares_within_group
            and self.kl.is_in_reward
        ):
            yield 'sampling_policy.truncated = "mask", kl.place = "reward": a masked completion is not scored, so its KL penalty is unknown, and yet its reward counts in its group\'s baseline; set kl.place = "loss", or sampling_policy.truncated = "train"'

    def _answer_problems(self) -> Iterator[str]:
        """Losses that train on answers, and data without them."""
        kind = f"loss.kind = {self.loss.kind!r}"
        if not self.loss.trains_on_completions and getattr(self.data, "answer_field", "") is None:
            yield f"{kind}: it trains on the data set's answers, and data.answer_field is none; name the field that holds them"
        if not self.loss.compares_answers:
            return
        if self.data.kind == "reasoning_gym":
            yield f'{kind}: it needs a worse answer beside each reference answer, and data.kind = "reasoning_gym" has none; use a file with both, or data.kind = "builtin"'
        if getattr(self.data, "rejected_field", "") is None:
            yield f"{kind}: it needs a worse answer beside each reference answer, and data.rejected_field is none; name the field that holds them"

    def _acceptance_problems(self) -> Iterator[str]:
        """Samples that say nothing of the last update."""
        if self.acceptance is None or not self.loss.trains_on_completions:
            return
        if self.rollout.lag:
            yield f"acceptance: with rollout.lag = {self.rollout.lag} samples come from weights before the last update, so they cannot judge it; set rollout.lag = 0, or remove the table"
        if self.train.old_log_probs == "rollout":
            yield "acceptance: it compares the trainer's log-probs with the engine's, and train.old_log_probs = \"rollout\" leaves the trainer's out; remove one of the two"
        if self.rollout.group_size < 2:
            yield f"acceptance: it compares completions of one prompt, and rollout.group_size = {self.rollout.group_size}; set 2 or more, or remove the table"

    def _hint_problems(self) -> Iterator[str]:
        """Hints that never come."""
        hint = None if self.teacher is None else self.teacher.hint
        if hint is None:
            return
        if hint.kind == "success" and self.rollout.group_size < 2:
            yield f'teacher.hint.kind = "success": it is another completion of the same prompt, and rollout.group_size = {self.rollout.group_size}; set 2 or more'
        if hint.kind == "answer" and getattr(self.data, "answer_field", "") is None:
            yield 'teacher.hint.kind = "answer": data.answer_field is none; name the field that holds the answers, or set kind = "success"'

    def _length_problems(self) -> Iterator[str]:
        limits = {"engine.kv_cache_tokens": self.engine.kv_cache_tokens}
        if self.model.init is not None:
            limits["model.init.max_positions"] = self.model.init.max_positions
        lengths = {"rollout.sampling.max_new_tokens": self.rollout.sampling.max_new_tokens}
        if self.evaluate.sampling is not None:
            lengths["evaluate.sampling.max_new_tokens"] = self.evaluate.sampling.max_new_tokens
        for key, limit in limits.items():
            for length_key, length in lengths.items():
                if limit is not None and length >= limit:
                    yield f"{length_key} = {length}: together with a prompt it exceeds {key} = {limit}; set fewer new tokens or a higher limit"
