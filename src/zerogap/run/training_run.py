"""The synchronous loop: gather, audit, train, publish; evaluate, watch, save, resume.

``TrainingRun.advance`` reads as the algorithm. A step depends only on the recipe, its number and the checkpoint, so a run
that is killed and started again ends with the same results.
"""

import resource
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from zerogap.algorithms import call_user_function, check_user_functions
from zerogap.config import RunConfig
from zerogap.data import build_prompt_sets
from zerogap.errors import NumericsError, RewardFailed, RunFolderError
from zerogap.ledger import StartedAudit, trained_gap
from zerogap.models import export_bytes
from zerogap.obs import Progress, StepMetrics, format_duration, monotonic_s
from zerogap.report import write_report
from zerogap.rollout import (
    Rollouts,
    add_rollout_metrics,
    save_rollouts,
)
from zerogap.run.checkpoint import (
    CheckpointPart,
    JsonPart,
    OlderWeights,
    WeightsPart,
    load_checkpoint,
    save_checkpoint,
)
from zerogap.run.components import Components
from zerogap.run.export import export_policy
from zerogap.run.failures import FailedRewards
from zerogap.run.files import RunFiles
from zerogap.run.folder import open_run_folder
from zerogap.run.gather import Gathered, build_gatherer
from zerogap.run.inputs import check_inputs
from zerogap.run.lock import owned
from zerogap.run.machine import return_free_memory
from zerogap.run.messages import (
    describe_acceptance,
    describe_corrections,
    describe_failures,
    describe_missing_signal,
    describe_sharing,
    describe_undone,
    warning_of_audit,
    warning_of_truncation,
)
from zerogap.run.model_card import model_card
from zerogap.run.oversight import Oversight
from zerogap.run.policy import load_policy
from zerogap.run.progress import show_generation, show_training
from zerogap.run.rewards import recipe_rewards
from zerogap.run.serving import RolloutEngine
from zerogap.run.step_metrics import (
    acceptance_metrics,
    add_engine_metrics,
    add_staleness,
    add_times,
    add_train_metrics,
    with_rates,
)
from zerogap.run.storing import DiskNeed, storing
from zerogap.run.versions import version_line
from zerogap.run.workload import Workload
from zerogap.run_folder import RunFolder, step_of
from zerogap.train import TrainMetrics
from zerogap.types import exclusion_reason
from zerogap.watch import BudgetController, Watch
from zerogap.weights import trained_weights


class TrainingRun:
    """One training run: its loop, and its open files. A context manager."""

    def __init__(self, config: RunConfig, console: Console, *, is_quiet: bool) -> None:
        self.config = config
        self.folder = RunFolder(Path(config.run.dir))
        self._console, self._is_quiet = console, is_quiet
        self._progress = Progress(console, is_quiet=is_quiet)
        self._open = ExitStack()
        self._failed_rewards = FailedRewards(console.print)
        self._began_s = monotonic_s()
        self._checkpointed_step = -1
        self._trained_step = -1
        """Step whose updates the trainer has finished; its version is published later."""

    def __enter__(self) -> "TrainingRun":
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _begin(self) -> None:
        self._open.enter_context(owned(self.folder))
        with self._saying_what_is_safe():
            self._prepare()

    def _prepare(self) -> None:
        open_run_folder(self.folder, self.config)
        # This package never draws from torch's global random stream. User code (rewards, environments) may.
        torch.manual_seed(self.config.run.seed)
        # Before the model is loaded: a file or a function with a mistake is found within a second.
        sets = build_prompt_sets(self.config.data)
        rewards = self._open.enter_context(closing(recipe_rewards(self.config, sets)))
        for line in rewards.describe():
            self._say(line)
        if changed := check_inputs(self.folder, self.config):
            self._console.print(changed)
        with self._progress.phase("loading the model"):
            policy = load_policy(self.config.model, seed=self.config.run.seed)
        check_user_functions(self.config.user_functions)
        sampling = self.config.rollout.sampling.params()
        for line in (
            warning_of_truncation(sampling),
            describe_corrections(self.config),
            describe_acceptance(self.config),
        ):
            if line is not None:
                self._console.print(line)
        self.components = Components(self.config, policy, say=self._say)
        self._open.callback(lambda: self.components.serving.close())
        self.workload = Workload(self.config, policy, sets=sets, rewards=rewards)
        self._describe()
        self._say(self._disk_need().check(self.folder))
        resumed_step = self._load()
        self._first_step = (resumed_step or 0) + 1
        self._open_files(-1 if resumed_step is None else resumed_step)
        if resumed_step is None:
            self._publish(0)
            self._evaluate_start()
        else:
            self._resume(resumed_step)

    @property
    def step_number(self) -> int:
        """Steps done. It is also the version of the trainer's weights, because each step makes one."""
        return self.components.version

    @property
    def engine(self) -> RolloutEngine:
        """The engine that samples now."""
        return self.components.serving.engine

    @property
    def is_finished(self) -> bool:
        """Whether the last step is done."""
        return self.step_number >= self.config.run.steps

    @property
    def is_alarmed(self) -> bool:
        """Whether an alarm stops the run."""
        return self._oversight.is_alarmed

    # ------------------------------------------------------------ a step

    def advance(self) -> None:
        """Run the next step, then its evaluation and its checkpoint if they are due.

        Raises:
            MismatchError: the gap stays above the budget, and no remedy is left. The step is saved first.
            RunFolderError: something cannot be written; says what is safe.
            RewardFailed: no completion of the first step got a reward. The step's rollouts are saved first.
        """
        with self._saying_what_is_safe():
            self._advance()

    def _advance(self) -> None:
        step, metrics = self.step_number + 1, StepMetrics()
        prompts_before = self.workload.stream.state_dict()
        with self.files.spans.span("step", step=step):
            gathered = self._gather(step, metrics)
            self._check_rewards(step, gathered)
            try:
                audit = self._start_audit(step, gathered.trained)
                own_log_probs = self._train(step, gathered.trained, metrics)
                self._finish_audit(audit, own_log_probs, metrics)
            except NumericsError as error:
                self.workload.stream.load_state_dict(prompts_before)
                self._give_up(step, gathered, error)
                raise
            self._publish(step)
            if self._is_due(self.config.obs.rollouts_every, step):
                self._save_rollouts(step, gathered, own_log_probs)
            if self._is_due(self.config.evaluate.every, step):
                self._evaluate(metrics)
            metrics.add_all(self._oversight.observe(step, metrics.reduce()))
        # Before the checkpoint: a run that is killed between the two repeats the step, so no line is lost.
        reported = self._report(metrics)
        if self.config.obs.on_step is not None:
            call_user_function(self.config.obs.on_step, step, reported, gathered.trained.samples)
        if self._is_due(self.config.run.checkpoint_every, step):
            self._checkpoint()
        self._oversight.tell()
        if self._oversight.ending is not None:
            self._checkpoint()
            self._write_report()
            raise self._oversight.ending

    def _gather(self, step: int, metrics: StepMetrics) -> Gathered:
        before = self.engine.stats
        gathered = self._gatherer(step, metrics)
        samples = gathered.trained.samples
        self.components.versions.admit(samples)
        if gathered.note:
            self._console.print(gathered.note)
        add_engine_metrics(metrics, gathered.drawn.samples, before, self.engine.stats)
        add_rollout_metrics(metrics, gathered.drawn.samples)
        add_staleness(metrics, samples, self.components.version)
        # The next weights cannot use the cached keys and values, and the backward pass needs their memory.
        self.engine.release_memory_occupation()
        return gathered

    def _check_rewards(self, step: int, gathered: Gathered) -> None:
        """Say why samples have no reward; if that is so for all of the first step, save them and end the run."""
        is_first = step == self._first_step
        try:
            self._failed_rewards.take(
                f"step {step}", gathered.drawn.samples, must_have_one=is_first
            )
        except RewardFailed:
            if self.config.obs.rollouts_every:
                self._save_rollouts(step, gathered, None)
            self._write_report()
            raise

    def _start_audit(self, step: int, rollouts: Rollouts) -> StartedAudit:
        """Start the ledger's audit before any weight changes."""
        components = self.components
        with self.files.spans.span("audit"):
            return components.ledger.start(rollouts.samples, step=step, version=components.version)

    def _finish_audit(
        self,
        audit: StartedAudit,
        own_log_probs: Sequence[np.ndarray] | None,
        metrics: StepMetrics,
    ) -> None:
        """Give the audit its last stage: the log-probs that the trainer computed before its first update."""
        with self.files.spans.span("audit"):
            # If no sample could train, none was audited.
            entry = audit.finish(own_log_probs or [])
        self.files.ledger.write(entry.to_json())
        metrics.add_all(entry.metrics())

    def _train(
        self, step: int, rollouts: Rollouts, metrics: StepMetrics
    ) -> Sequence[np.ndarray] | None:
        """Train, or undo the step before. The trainer's log-probs before the weights changed; None if no sample can train."""
        samples, components = rollouts.samples, self.components
        if all(exclusion_reason(sample) is not None for sample in samples):
            self._say(
                f"step {step}: no sample can train ({describe_failures(rollouts)}); the weights stay"
            )
            return None
        with (
            self.files.spans.span("train"),
            self._progress.phase(f"step {step}: train", unit="rows") as phase,
        ):
            # An engine that shares the weights must not sample during the update; the next publish lets it go on.
            self.engine.begin_weight_update()
            trainer, show = components.trainer, show_training(phase)
            plan = trainer.plan(samples, exact_version=components.exact_version, on_progress=show)
            if plan.undoes:
                trainer.undo(plan)
                trained, own_log_probs = None, plan.old_log_probs
            else:
                trained = trainer.step(plan, on_progress=show)
                own_log_probs = trained.old_log_probs
            self._trained_step = step
            return_free_memory()
        metrics.add_all(acceptance_metrics(plan.acceptance))
        metrics.add_all(trained_gap(samples, own_log_probs))
        if plan.acceptance is not None and plan.undoes:
            self._console.print(describe_undone(step, plan.acceptance))
        if trained is not None:
            self._tell_trained(step, trained, metrics)
        return own_log_probs

    def _tell_trained(self, step: int, trained: TrainMetrics, metrics: StepMetrics) -> None:
        add_train_metrics(metrics, trained)
        if step == 1:
            self._say(describe_sharing(trained))
        if missing := describe_missing_signal(step, trained):
            self._say(missing)
        if trained.critic is not None and trained.critic.is_alone:
            self._say(f"step {step}: the critic trains alone; the policy's weights stay")
        if warning := warning_of_audit(step, trained.audit):
            self._console.print(warning)

    def _publish(self, step: int) -> None:
        """Give the trainer's weights to the engine, and record their fingerprint."""
        with self.files.spans.span("publish"):
            self.components.version = step
            published = self.components.serving.publish(step)
            settings = self.components.settings if step else None
            self.files.versions.write(version_line(step, published.fingerprint, settings))
            self.engine.resume_memory_occupation()

    def _save_rollouts(
        self, step: int, gathered: Gathered, own_log_probs: Sequence[np.ndarray] | None
    ) -> None:
        columns = {"old_log_probs": np.concatenate(own_log_probs)} if own_log_probs else {}
        notes = {
            name: {"item_id": item.item_id, "question": item.question, "answer": item.answer}
            for name, item in gathered.drawn.items.items()
        }
        with self.files.spans.span("save_rollouts"), storing(self.folder.rollouts(step)):
            if others := gathered.not_trained.samples:
                save_rollouts(self.folder.not_trained(step), others, notes=notes)
            save_rollouts(
                self.folder.rollouts(step),
                gathered.trained.samples,
                notes=notes,
                trainer_columns=columns,
            )

    def _is_due(self, every: int, step: int) -> bool:
        return every > 0 and (step % every == 0 or step == self.config.run.steps)

    def _give_up(self, step: int, gathered: Gathered, error: NumericsError) -> None:
        """After a number that is not finite: save the step's rollouts, and the step before it if its weights are intact."""
        self._oversight.failed(step, error)
        if self.config.obs.rollouts_every:
            # Even if they are not due: the command that the alarm suggests reads them.
            self._save_rollouts(step, gathered, None)
        if self.components.trainer.is_inconsistent or self._trained_step == step:
            self._console.print(
                f"step {step} failed after the first of its updates, so its weights are not to be trusted and are not saved; "
                "run the same command again to continue from the last checkpoint"
            )
        elif self.step_number:
            self._checkpoint()
            self._write_report()

    # ------------------------------------------------------------ evaluation

    def _evaluate(self, metrics: StepMetrics) -> None:
        serving, total = self.components.serving, self.workload.evaluation.num_completions
        if serving.is_copy:
            version = self.components.version
            serving.evaluator.call(lambda engine: engine.set_weight_version(version)).result()
            serving.evaluator.resume_memory_occupation()
        with (
            self.files.spans.span("evaluate"),
            self._progress.phase(
                f"step {self.step_number}: evaluate", total=total, unit="completions"
            ) as phase,
        ):
            samples = self.workload.evaluation.run(
                partial(self.workload.collector, serving.evaluator),
                metrics=metrics,
                on_progress=show_generation(phase),
            )
        self._failed_rewards.take(
            f"evaluation at step {self.step_number}", samples, must_have_one=self.step_number == 0
        )
        # A resumed run starts with an empty prefix cache. Without the flush, the next step's counts would differ from its.
        serving.evaluator.call(lambda engine: engine.flush_cache()).result()
        if serving.is_copy:
            serving.evaluator.release_memory_occupation()

    def _evaluate_start(self) -> None:
        if self.config.evaluate.every:
            metrics = StepMetrics()
            with self.files.spans.span("step", step=0):
                self._evaluate(metrics)
            self._report(metrics)

    # ------------------------------------------------------------ keeping

    def _checkpoint(self) -> None:
        if self._checkpointed_step == self.step_number:
            return
        with self.files.spans.span("checkpoint"), storing(self.folder.checkpoint(self.step_number)):
            save_checkpoint(
                self.folder.checkpoints,
                self.step_number,
                [*self._parts(), *self._later_parts()],
                keep=self.config.run.keep_checkpoints,
            )
        self._checkpointed_step = self.step_number

    def _parts(self) -> list[CheckpointPart]:
        """Parts that are loaded before the run's files are open."""
        components = self.components
        return [
            WeightsPart(components.policy.model),
            components.trainer,
            OlderWeights(components.serving.history, components.version),
            JsonPart("prompts", self.workload.stream),
            JsonPart("versions", components.versions),
        ]

    def _later_parts(self) -> list[CheckpointPart]:
        """Parts that are loaded after that: one writes to the files, the other may rebuild the engine."""
        return [JsonPart("oversight", self._oversight), JsonPart("adaptations", self.components)]

    def _load(self) -> int | None:
        """Load the newest checkpoint and return its step; None if there is none."""
        latest, components = self.folder.latest_checkpoint(), self.components
        if latest is None:
            return None
        components.version = self._checkpointed_step = load_checkpoint(latest, self._parts())
        return components.version

    def _resume(self, step: int) -> None:
        load_checkpoint(self.folder.checkpoint(step), self._later_parts())
        self.components.serving.publish(step)
        self._say(f"resumed {self.folder.path} after step {step}")

    def announce_interrupt(self) -> None:
        """Tell the user what the first Ctrl-C does."""
        self._console.print(
            f"interrupted: step {self.step_number + 1} will be finished and saved; press Ctrl-C again to stop at once"
        )

    def finish(self) -> None:
        """Checkpoint, export (when the run is complete) and report.

        Raises:
            RunFolderError: something cannot be written; says what is safe.
        """
        with self._saying_what_is_safe():
            self._finish()

    @contextmanager
    def _saying_what_is_safe(self) -> Generator[None]:
        try:
            yield
        except RunFolderError as error:
            kept = self.folder.latest_checkpoint()
            safe = "no step is saved yet" if kept is None else f"step {step_of(kept)} is saved"
            msg = f"{error}; {safe}: make room or mend the folder's permissions, then run the same command again to continue"
            raise RunFolderError(msg) from error

    def _finish(self) -> None:
        if self.step_number:
            self._checkpoint()
        if self.is_finished:
            with self.files.spans.span("export"), storing(self.folder.export):
                card = model_card(self.config, self.folder, step=self.step_number)
                export_policy(self.components.policy, self.folder.export, card=card)
        took = format_duration(monotonic_s() - self._began_s)
        if self.is_finished:
            self._console.print(
                f"done: {self.step_number} steps in {took}; model in {self.folder.export}"
            )
        else:
            why = " by an alarm (watch.stop)" if self.is_alarmed else ""
            self._console.print(
                f"stopped{why} after step {self.step_number} of {self.config.run.steps}; "
                "run the same command again to continue"
            )
        self._write_report()

    def _write_report(self) -> None:
        decode = self.components.policy.tokenizer.decode
        with storing(self.folder.path):
            path = write_report(self.folder.path, decode_token=lambda i: decode([i], False))
        self._console.print(f"report: {path}")

    # ------------------------------------------------------------ setting up

    def _describe(self) -> None:
        policy = self.components.policy
        num_parameters = sum(p.numel() for p in policy.model.parameters())
        self._say(
            f"policy: {num_parameters / 1e6:.1f} M parameters, vocabulary {policy.vocab_limit:,}; "
            f"prompts: {len(self.workload.items)} to train, {len(self.workload.evaluation.items)} held out; folder: {self.folder.path}"
        )

    def _disk_need(self) -> DiskNeed:
        model, components = self.components.policy.model, self.components
        weights = sum(tensor.nbytes for tensor in trained_weights(model).values())
        return DiskNeed.of(
            self.config.run,
            checkpoint=weights * (1 + self.config.rollout.lag) + components.trainer.num_saved_bytes,
            export=export_bytes(model),
        )

    def _open_files(self, resumed_step: int) -> None:
        config = self.config
        console = None if self._is_quiet else self._console
        self.files = RunFiles(self.folder, config, resumed_step=resumed_step, console=console)
        self._open.callback(self.files.close)
        self._oversight = Oversight(
            Watch(config.watch, self.folder.path),
            BudgetController(config.mismatch),
            self.components,
            file=self.files.alarms,
            say=self._console.print,
        )
        self._gatherer = build_gatherer(
            config,
            self.workload,
            lambda: self.engine,
            spans=self.files.spans,
            progress=self._progress,
        )

    # ------------------------------------------------------------ telling

    def _report(self, metrics: StepMetrics) -> dict[str, float]:
        """Write the step's line; returns its metrics."""
        add_times(metrics, self.files.spans.take_totals())
        metrics.add("memory/peak_bytes", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        reported = with_rates(metrics.reduce())
        self.files.write_step(self.step_number, self.components.version, reported)
        return reported

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            self._console.print(text)
