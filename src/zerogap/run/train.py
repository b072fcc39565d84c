"""The synchronous loop: generate, score, train, publish; evaluate, save, resume.

``train`` is the door; ``TrainingRun.step`` reads as the algorithm. Engine and trainer hold one model, so
publishing a step's weights is a new version number and a fingerprint. Everything a step depends on is a
function of the recipe, the step's number and the checkpoint, so a run that was killed and is started
again ends as if nothing had happened.
"""

import resource
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from zerogap.algorithms import exclusion_reason
from zerogap.config import RunConfig
from zerogap.config.env import read_environment
from zerogap.data import (
    PromptEncoder,
    PromptItem,
    PromptStream,
    build_prompt_sets,
    check_prompt_lengths,
)
from zerogap.errors import ConfigError
from zerogap.kernels import kernel_report
from zerogap.obs import (
    ConsoleSink,
    JsonlFile,
    JsonlSink,
    MetricSink,
    Progress,
    Spans,
    StepMetrics,
    TensorBoardSink,
    format_duration,
    monotonic_s,
)
from zerogap.rollout import Rollouts, add_rollout_metrics, build_rewards, save_rollouts
from zerogap.run.checkpoint import RunState, load_checkpoint, save_checkpoint
from zerogap.run.collectors import Collectors
from zerogap.run.evaluate import Evaluation
from zerogap.run.export import export_policy
from zerogap.run.folder import RunFolder
from zerogap.run.free_memory import return_free_memory
from zerogap.run.interrupt import Interrupt
from zerogap.run.policy import Policy, load_policy
from zerogap.run.progress import show_generation, show_training
from zerogap.run.report import write_report
from zerogap.run.step_metrics import (
    add_engine_metrics,
    add_group_metrics,
    add_staleness,
    add_train_metrics,
)
from zerogap.train import OldLogProbAudit, Trainer, TrainMetrics
from zerogap.weights import weight_fingerprint


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a call of ``train`` ended."""

    folder: Path
    step: int
    """Steps done in all."""
    is_finished: bool
    """False if it was interrupted; the same recipe goes on."""


def train(config: RunConfig, *, quiet: bool = False) -> TrainResult:
    """Run a recipe from where its folder stands to its last step.

    Args:
        config: the resolved recipe.
        quiet: print warnings and the end only.

    Raises:
        ZerogapError: the recipe, its data, its model or its folder cannot be used, or a step failed.
    """
    apply_threads()
    console = Console(soft_wrap=True, highlight=False)
    with (
        TrainingRun(config, console, is_quiet=quiet) as run,
        Interrupt(run.announce_interrupt) as interrupt,
    ):
        while not run.is_finished and not interrupt.is_requested:
            run.advance()
        run.finish(is_interrupted=interrupt.is_requested)
        return TrainResult(
            folder=run.folder.path, step=run.step_number, is_finished=run.is_finished
        )


def apply_threads() -> None:
    """Let the tensor kernels use ZEROGAP_THREADS threads, if it is set."""
    if (threads := read_environment().threads) is not None:
        torch.set_num_threads(threads)


class TrainingRun:
    """Everything a run holds: policy, engine, trainer, prompts, sinks. A context manager; owns its files."""

    def __init__(self, config: RunConfig, console: Console, *, is_quiet: bool) -> None:
        self.config = config
        self.folder = RunFolder(Path(config.run.dir))
        self.step_number = 0
        self._console = console
        self._is_quiet = is_quiet
        self._progress = Progress(console, is_quiet=is_quiet)
        self._open = ExitStack()
        self._began_s = monotonic_s()
        self._checkpointed_step = -1

    def __enter__(self) -> "TrainingRun":
        self.folder.open(self.config)
        # Nothing here draws from torch's global stream; user code (rewards, environments) may, and must be resumable.
        torch.manual_seed(self.config.run.seed)
        with self._progress.phase("loading the model"):
            self.policy = load_policy(self.config.model, seed=self.config.run.seed)
        self._check_numerics(self.policy)
        self._warn_of_truncation()
        self._build_data()
        self._build_machines()
        resumed = self._resume()
        self._open_files(resumed)
        if resumed is None:
            self._evaluate_start()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    @property
    def is_finished(self) -> bool:
        """Whether the last step is done."""
        return self.step_number >= self.config.run.steps

    @property
    def weight_version(self) -> int:
        """Of the weights as they are now: one version a step."""
        return self.step_number

    # ------------------------------------------------------------ a step

    def advance(self) -> None:
        """The next step, its evaluation and its checkpoint."""
        step, metrics = self.step_number + 1, StepMetrics()
        with self.spans.span("step", step=step):
            rollouts = self._generate(step, metrics)
            trained = self._train(rollouts, metrics)
            self._publish(step)
            self._save_rollouts(step, rollouts, trained)
            if self._is_due(self.config.evaluate.every, step):
                self._evaluate(metrics)
            if self._is_due(self.config.run.checkpoint_every, step):
                self._checkpoint()
        self._report(metrics)

    def _generate(self, step: int, metrics: StepMetrics) -> Rollouts:
        config = self.config.rollout
        items = self.stream.take(config.prompts_per_step)
        collector = self.make_collector(config.sampling.params(), config.group_size)
        before = self.engine.stats
        total = len(items) * config.group_size
        label = f"step {step}: generate"
        with (
            self.spans.span("generate"),
            self._progress.phase(label, total=total, unit="completions") as phase,
        ):
            drawn = collector.draw(items, step=step, on_progress=show_generation(phase))
        with self.spans.span("reward"):
            rollouts = collector.reward(drawn)
        add_engine_metrics(metrics, self.engine.stats - before)
        add_rollout_metrics(metrics, rollouts.samples)
        add_staleness(metrics, rollouts.samples, self.weight_version)
        return rollouts

    def _train(self, rollouts: Rollouts, metrics: StepMetrics) -> TrainMetrics | None:
        samples = rollouts.samples
        if all(exclusion_reason(sample) is not None for sample in samples):
            self._say(
                f"step {self.step_number + 1}: no sample can train ({self._failures(rollouts)}); the weights stay"
            )
            return None
        label = f"step {self.step_number + 1}: train"
        with self.spans.span("train"), self._progress.phase(label, unit="rows") as phase:
            # Keys and values are of no use to the next weights, and their memory is of use to the backward pass.
            self.engine.release_memory_occupation()
            trained = self.trainer.step(
                samples,
                exact_version=self._exact_version(),
                on_progress=show_training(phase),
            )
            return_free_memory()
        if trained.groups is not None:
            add_group_metrics(metrics, trained.groups)
        add_train_metrics(metrics, samples, trained)
        if self.step_number == 0:
            self._say(_describe_sharing(trained))
        self._warn_of_audit(trained.audit)
        return trained

    def _exact_version(self) -> int | None:
        """Samples of this version carry the trainer's own log-probs; None where nobody promises it."""
        is_exact = self.config.numerics == "exact"
        edits_logits = self.config.rollout.sampling.params().edits_logits
        return self.weight_version if is_exact and not edits_logits else None

    def _warn_of_audit(self, audit: OldLogProbAudit) -> None:
        if audit.num_different:
            self._console.print(
                f"warning: step {self.step_number + 1}: {audit.num_different} of {audit.num_audited} log-probs that should be the engine's "
                f"to the bit are not ({audit.first_difference}); the trainer's own were computed and used for all. Please report it: "
                'numerics = "exact" promises that this cannot happen'
            )

    def _publish(self, step: int) -> None:
        """The engine reads the trainer's own storage: a new version makes its cached pages unreachable."""
        with self.spans.span("publish"):
            self.step_number = step
            self.fingerprint = weight_fingerprint(self.policy.model)
            self.engine.set_weight_version(self.weight_version)
            self.engine.resume_memory_occupation()

    def _save_rollouts(self, step: int, rollouts: Rollouts, trained: TrainMetrics | None) -> None:
        if not self._is_due(self.config.obs.rollouts_every, step):
            return
        columns = (
            {} if trained is None else {"old_log_probs": np.concatenate(trained.old_log_probs)}
        )
        notes = {
            name: {"item_id": item.item_id, "question": item.question, "answer": item.answer}
            for name, item in rollouts.items.items()
        }
        with self.spans.span("save_rollouts"):
            save_rollouts(
                self.folder.rollouts(step), rollouts.samples, notes=notes, trainer_columns=columns
            )

    def _is_due(self, every: int, step: int) -> bool:
        return every > 0 and (step % every == 0 or step == self.config.run.steps)

    # ------------------------------------------------------------ evaluation

    def _evaluate(self, metrics: StepMetrics) -> None:
        label = f"step {self.step_number}: evaluate"
        total = self.evaluation.num_completions
        with (
            self.spans.span("evaluate"),
            self._progress.phase(label, total=total, unit="completions") as phase,
        ):
            self.evaluation.run(
                self.make_collector, metrics=metrics, on_progress=show_generation(phase)
            )
        # A resumed run has not evaluated: what evaluation left in the cache must not show in the next step's counts.
        self.engine.flush_cache()

    def _evaluate_start(self) -> None:
        self.fingerprint = weight_fingerprint(self.policy.model)
        if self.config.evaluate.every:
            metrics = StepMetrics()
            with self.spans.span("step", step=0):
                self._evaluate(metrics)
            self._report(metrics)

    # ------------------------------------------------------------ keeping

    def _checkpoint(self) -> None:
        if self._checkpointed_step == self.step_number:
            return
        state = RunState(
            step=self.step_number,
            weight_version=self.weight_version,
            fingerprint=self.fingerprint,
            prompts=self.stream.state_dict(),
        )
        with self.spans.span("checkpoint"):
            save_checkpoint(
                self.folder.checkpoints,
                self.policy.model,
                self.trainer.state_dict(),
                state,
                keep=self.config.run.keep_checkpoints,
            )
        self._checkpointed_step = self.step_number

    def _resume(self) -> int | None:
        latest = self.folder.latest_checkpoint()
        if latest is None:
            return None
        trainer_state, state = load_checkpoint(latest, self.policy.model)
        self.trainer.load_state_dict(trainer_state)
        self.stream.load_state_dict(state.prompts)
        self.step_number = self._checkpointed_step = state.step
        self.fingerprint = state.fingerprint
        self.engine.set_weight_version(state.weight_version)
        self._say(f"resumed {self.folder.path} after step {state.step}")
        return state.step

    def announce_interrupt(self) -> None:
        """Tell the user what the first Ctrl-C does."""
        self._console.print(
            f"interrupted: step {self.step_number + 1} will be finished and saved; press Ctrl-C again to stop at once"
        )

    def finish(self, *, is_interrupted: bool) -> None:
        """Checkpoint, export (when the run is complete) and report."""
        if self.step_number:
            self._checkpoint()
        if self.is_finished:
            with self.spans.span("export"):
                export_policy(self.policy, self.folder.export)
        path = write_report(
            self.folder.path, decode_token=lambda i: self.policy.detokenize([i], False)
        )
        took = format_duration(monotonic_s() - self._began_s)
        if is_interrupted and not self.is_finished:
            self._console.print(
                f"stopped after step {self.step_number} of {self.config.run.steps}; the same command goes on"
            )
        elif self.is_finished:
            self._console.print(
                f"done: {self.step_number} steps in {took}; model in {self.folder.export}"
            )
        self._console.print(f"report: {path}")

    # ------------------------------------------------------------ setting up

    def _check_numerics(self, policy: Policy) -> None:
        head_dim = policy.model.config.head_dim
        if self.config.numerics == "fast":
            self._say(
                f"{kernel_report(head_dim)}; numerics: fast, the gap is measured and may be open"
            )
            return
        probe = policy.probe()
        if not probe.is_exact:
            shapes = ", ".join(f"{i}x{o} at {rows} rows" for i, o, rows in probe.failures[:3])
            msg = f'numerics = "exact": matrix products on this machine give a row other bits beside other rows ({shapes}), even in fixed tiles; set numerics = "fast", or another number of threads with ZEROGAP_THREADS'
            raise ConfigError(msg)
        self._say(f"{kernel_report(head_dim)}; numerics: exact, probed on this model's shapes")

    def _warn_of_truncation(self) -> None:
        sampling = self.config.rollout.sampling.params()
        if sampling.truncates:
            given = f"top_k = {sampling.top_k}, top_p = {sampling.top_p}, min_p = {sampling.min_p}"
            self._console.print(
                f"warning: rollout.sampling truncates ({given}), so tokens are drawn from another distribution than the "
                "one the loss scores; gap/sampling says how far apart they are (top_k = -1, top_p = 1, min_p = 0 closes it)"
            )

    def _build_data(self) -> None:
        config = self.config
        sets = build_prompt_sets(config.data)
        self.encode = PromptEncoder(self.policy.tokenizer, config.prompt)
        self._num_train_prompts = len(sets.train)
        self.stream = PromptStream(sets.train, seed=config.run.seed, shuffle=sets.shuffle)
        self.evaluation = Evaluation.of_recipe(config, sets.evaluation)
        self.rewards = build_rewards(config.reward, score=sets.score)
        self._open.callback(self.rewards.close)
        self._check_prompts([*sets.train, *self.evaluation.items])

    def _check_prompts(self, items: Sequence[PromptItem]) -> None:
        room = self.policy.model.config.max_positions
        longest = max(
            self.config.rollout.sampling.max_new_tokens,
            self.config.evaluate_sampling.max_new_tokens,
        )
        check_prompt_lengths(items, self.encode, max_prompt_tokens=room - longest)

    def _build_machines(self) -> None:
        config = self.config
        self.engine = self.policy.engine(config.engine, seed=config.run.seed)
        self.make_collector = Collectors(
            policy=self.policy,
            engine=self.engine,
            rewards=self.rewards,
            encode=self.encode,
            seed=config.run.seed,
        )
        needs_reference = config.loss.needs_reference
        self.trainer = Trainer(
            self.policy.model,
            config.train,
            config.loss,
            total_steps=config.run.steps,
            vocab_limit=self.policy.vocab_limit,
            reference=load_policy(config.model, seed=config.run.seed).model
            if needs_reference
            else None,
        )
        num_parameters = sum(p.numel() for p in self.policy.model.parameters())
        self._say(
            f"policy: {num_parameters / 1e6:.1f} M parameters, vocabulary {self.policy.vocab_limit:,}; "
            f"prompts: {self._num_train_prompts} to train, {len(self.evaluation.items)} held out; folder: {self.folder.path}"
        )

    def _open_files(self, resumed: int | None) -> None:
        # Steps after the checkpoint will be done again: their lines go.
        keep_until = -1 if resumed is None else resumed
        events = JsonlFile(self.folder.events)
        self._open.callback(events.close)
        self.spans = Spans(events.write)
        self._sinks: list[MetricSink] = [JsonlSink(self.folder.metrics, resumed_step=keep_until)]
        if not self._is_quiet:
            self._sinks.append(ConsoleSink(self._console, total_steps=self.config.run.steps))
        if self.config.obs.tensorboard:
            self._sinks.append(TensorBoardSink(self.folder.tensorboard, resumed_step=keep_until))
        for sink in self._sinks:
            self._open.callback(sink.close)

    # ------------------------------------------------------------ telling

    def _report(self, metrics: StepMetrics) -> None:
        totals = self.spans.take_totals()
        times = {name: totals[name] for name in _TIMED if name in totals}
        for name, seconds in times.items():
            metrics.add(f"step/{name}_s", seconds)
        if "step" in totals:
            metrics.add("step/time_s", totals["step"])
        metrics.add("memory/peak_bytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        reduced = metrics.reduce()
        for rate, count, seconds in _RATES:
            if count in reduced and reduced.get(seconds):
                reduced[rate] = reduced[count] / reduced[seconds]
        for sink in self._sinks:
            sink.write(self.step_number, self.weight_version, reduced)

    def _failures(self, rollouts: Rollouts) -> str:
        counts = {kind: n for kind, n in rollouts.outcome_counts.items() if n and not kind.is_valid}
        return ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no loss tokens"

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            self._console.print(text)


def _describe_sharing(trained: TrainMetrics) -> str:
    alone, wasted = trained.num_rows + trained.num_rows_saved, trained.wasted_fraction
    cure = ": a larger train.micro_batch_tokens cuts groups less" if wasted > _MUCH_WASTE else ""
    return (
        f"training computes {trained.num_rows:,} rows ({wasted:.1%} of them twice{cure}); "
        f"every sample by itself would need {alone:,}: {trained.saved_fraction:.0%} saved"
    )


_MUCH_WASTE = 0.1
_TIMED = ("generate", "reward", "train", "publish", "evaluate", "checkpoint", "save_rollouts")
_RATES = (
    ("engine/tokens_per_s", "engine/num_sampled_tokens", "step/generate_s"),
    ("train/tokens_per_s", "train/num_rows", "step/train_s"),
)
