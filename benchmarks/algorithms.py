"""How do the presets compare on one task, at equal numbers of generated tokens?

    python benchmarks/algorithms.py --task tiny --seeds 3 --steps 100
    python benchmarks/algorithms.py --task tiny --seeds 3 --steps 100 --mismatch
    python benchmarks/algorithms.py --presets grpo dapo -- --train.learning_rate 3e-4

The first case makes ``--steps`` steps with each seed; every other case stops after the step in which it has generated as
many tokens, groups that dynamic sampling replaced included. All cases draw as many completions a step, of the same
length, and make two updates of them. Settings of a preset on tiny.toml are those of recipes/losses/, where it has a file.

``--mismatch`` compares corrections instead: samples are four steps old, and the engine computes in bf16, the trainer in fp32.

Every run has a folder under ``--out``. A finished run is not run again, so the same command continues after Ctrl-C.
"""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from zerogap.config import RunConfig
from zerogap.config.load import load_config
from zerogap.errors import BenchmarkError, NumericsError, ZerogapError
from zerogap.obs import format_duration, monotonic_s, read_jsonl, written_whole
from zerogap.run import evaluate_model
from zerogap.run.export import export_policy
from zerogap.run.interrupt import Interrupt
from zerogap.run.machine import apply_threads, describe_environment
from zerogap.run.training_run import TrainingRun
from zerogap.run_folder import RunFolder
from zerogap_bench.comparison import FinishedRun, caption, compare, curves_svg, markdown_table

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("tiny", "quickstart")
UPDATES_PER_STEP = 2
"""With one update the policy ratio is 1, and most losses have one gradient."""
MOST_STEPS = 2
"""A run whose completions are short ends after this many times ``--steps``, even below the token budget."""
INTERRUPTED = 130


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    preset: str
    flags: tuple[str, ...] = ()
    """As ``zerogap train`` takes them."""
    group_divisor: int = 1
    """Groups are smaller by this factor, and there are as many times more prompts: the number of completions is equal."""
    uses_recipe: bool = True
    """Whether the settings of recipes/losses/ apply."""


PRESETS = (
    Case("grpo", "grpo"),
    Case("dr_grpo", "dr_grpo"),
    # Its recipe has longer completions, and a penalty that needs them.
    Case("dapo", "dapo", uses_recipe=False),
    Case("lite_ppo", "lite_ppo"),
    Case("gspo", "gspo"),
    Case("cispo", "cispo"),
    Case("scalerl", "scalerl"),
    Case("sapo", "sapo"),
    Case("dppo", "dppo"),
    Case("drpo", "drpo"),
    Case("rloo", "rloo"),
    Case("maxrl", "maxrl"),
    Case("otb", "otb"),
    # Rewards train beside the teacher, as in their recipes: a random model learns nothing from a hint alone.
    Case("sdpo", "sdpo", ("--advantage.kind=group", "--teacher.weight=0.1")),
    Case("sdft", "sdft", ("--advantage.kind=group", "--teacher.weight=0.1")),
    # Advantages that do not compare within groups: more prompts tell more than more answers to one.
    Case("reinforce_pp", "reinforce_pp", group_divisor=8),
    Case("ppo", "ppo", group_divisor=4),
)

MISMATCH = ("--rollout.lag=4", "--numerics=fast", "--engine.dtype=bf16", "--model.dtype=fp32")
_WEIGHT, _MASK = "--corrections.weight", "--corrections.mask"
CORRECTIONS = (
    Case("none", "grpo", ("--corrections.auto=false",)),
    Case("default", "grpo"),
    Case("clip", "grpo", (f"{_WEIGHT}.kind=clip", f"{_WEIGHT}.low=0.5", f"{_WEIGHT}.high=2")),
    Case(
        "icepop",
        "grpo",
        (f"{_WEIGHT}.high=5", f"{_MASK}.level=token", f"{_MASK}.low=0.5", f"{_MASK}.high=5"),
    ),
    Case(
        "mis",
        "grpo",
        (f"{_WEIGHT}.level=sequence", f"{_WEIGHT}.high=3", f"{_MASK}.level=sequence", f"{_MASK}.high=3"),
    ),
    Case("off_policy_kl", "grpo", ("--corrections.auto=false", "--corrections.off_policy_kl=0.1")),
    # At the usual 0.01 the old samples of a model that learns this fast would all be dropped.
    Case("k3", "grpo", (f"{_MASK}.kind=k3", f"{_MASK}.level=geometric", f"{_MASK}.high=0.1")),
    Case("dppo", "dppo"),
    Case("drpo", "drpo"),
)  # fmt: skip


class Stopped(Exception):
    """Ctrl-C ended a run after a step; its checkpoint is saved."""


@dataclass(frozen=True)
class Experiment:
    """What a command compares, and where."""

    task: str
    num_steps: int
    is_mismatched: bool
    overrides: tuple[str, ...]
    out: Path

    @property
    def cases(self) -> tuple[Case, ...]:
        """All there are; the first is what others are compared with."""
        return CORRECTIONS if self.is_mismatched else PRESETS

    @property
    def settings(self) -> dict[str, Any]:
        """What all runs of a folder share."""
        return {
            "experiment": "mismatch" if self.is_mismatched else "presets",
            "task": self.task,
            "steps": self.num_steps,
            "overrides": list(self.overrides),
        }

    @property
    def title(self) -> str:
        """Of the figure."""
        what = "corrections of old bf16 samples" if self.is_mismatched else "presets"
        return f"{what} on {self.task}.toml: reward over generated tokens"

    def base(self) -> RunConfig:
        """The task with the user's keys, before any case."""
        return load_config([self._recipe], self.overrides).config

    def config(self, case: Case, seed: int) -> RunConfig:
        """The run of a case."""
        rollout = self.base().rollout
        divisor = math.gcd(rollout.group_size, case.group_divisor)
        steps = self.num_steps * (1 if case == self.cases[0] else MOST_STEPS)
        flags = [
            f"--loss.kind={case.preset}",
            f"--train.updates_per_step={UPDATES_PER_STEP}",
            f"--train.warmup_steps={min(2, self.num_steps - 1)}",
            *(MISMATCH if self.is_mismatched else ()),
            *case.flags,
            *self.overrides,
            f"--run.dir={self.folder(case, seed).path}",
            f"--run.seed={seed}",
            f"--run.steps={steps}",
            f"--rollout.prompts_per_step={rollout.prompts_per_step * divisor}",
            f"--rollout.group_size={rollout.group_size // divisor}",
            "--run.checkpoint_every=0",
            "--obs.rollouts_every=0",
            "--evaluate.every=0",
        ]
        if case.preset == "dr_grpo":
            flags.append(f"--loss.constant_denominator={rollout.sampling.max_new_tokens}")
        return load_config([self._recipe, *self._layers(case)], flags).config

    def folder(self, case: Case, seed: int) -> RunFolder:
        """Where a run is."""
        return RunFolder(self.out / case.name / f"seed_{seed}")

    @property
    def _recipe(self) -> Path:
        return ROOT / "recipes" / f"{self.task}.toml"

    def _layers(self, case: Case) -> Iterator[Path]:
        """The preset's settings for tiny.toml. Those for other models are the preset's own."""
        layer = ROOT / "recipes" / "losses" / f"{case.preset}.toml"
        if self.task == "tiny" and case.uses_recipe and layer.exists():
            yield layer


# ---------------------------------------------------------------- runs


def finished(experiment: Experiment, case: Case, seed: int) -> FinishedRun | None:
    """A run that is done; None if it is not."""
    folder = experiment.folder(case, seed)
    if not _outcome(folder).exists():
        return None
    outcome = json.loads(_outcome(folder).read_text(encoding="utf-8"))
    return FinishedRun(seed=seed, records=_records(folder), **outcome)


def carry_out(experiment: Experiment, case: Case, seed: int, *, budget: int | None) -> FinishedRun:
    """Run to the token budget (None: to its last step), or continue a run that Ctrl-C ended; then evaluate.

    Raises:
        Stopped: Ctrl-C; the same call continues the run.
    """
    config, folder = experiment.config(case, seed), experiment.folder(case, seed)
    folder.path.mkdir(parents=True, exist_ok=True)
    outcome: dict[str, Any] = {"eval_reward": None, "error": None}
    with (folder.path / "log.txt").open("a", encoding="utf-8") as log:
        console = Console(file=log, soft_wrap=True, highlight=False, markup=False)
        try:
            _train(config, folder, console, budget)
        except NumericsError as error:
            # The result of this run. The others may do better.
            outcome["error"] = str(error)
    if outcome["error"] is None:
        metrics = evaluate_model(str(folder.export), experiment.base(), quiet=True)
        outcome["eval_reward"] = metrics.get("eval/reward/mean")
    _write(_outcome(folder), json.dumps(outcome))
    # Weights and optimizer states of all runs would fill a disk, and nothing reads them any more.
    for path in (folder.checkpoints, folder.export):
        if path.exists():
            shutil.rmtree(path)
    return FinishedRun(seed=seed, records=_records(folder), **outcome)


def _train(config: RunConfig, folder: RunFolder, console: Console, budget: int | None) -> None:
    with (
        TrainingRun(config, console, is_quiet=True) as run,
        Interrupt(run.announce_interrupt) as interrupt,
    ):
        while not run.is_finished and (budget is None or _num_tokens(folder) < budget):
            if interrupt.is_requested:
                run.finish()
                raise Stopped
            run.advance()
        export_policy(run.components.policy, folder.export)


def _num_tokens(folder: RunFolder) -> int:
    return FinishedRun(seed=0, records=_records(folder)).num_tokens


def _records(folder: RunFolder) -> list[dict[str, Any]]:
    lines = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    return [line for line in lines if line["step"] > 0]


def _outcome(folder: RunFolder) -> Path:
    return folder.path / "outcome.json"


# ---------------------------------------------------------------- the whole comparison


def compare_cases(
    experiment: Experiment, cases: Sequence[Case], num_seeds: int, target: float
) -> str:
    """Make all runs that are missing; returns the table. Files are written after each run."""
    _claim(experiment)
    for case in cases:
        # What a preset refuses is said before the first run.
        experiment.config(case, 0)
    pending = [(seed, case) for seed in range(num_seeds) for case in cases]
    done: dict[tuple[int, str], FinishedRun] = {}
    for seed, case in pending:
        if (found := finished(experiment, case, seed)) is not None:
            done[seed, case.name] = found
    missing = [(seed, case) for seed, case in pending if (seed, case.name) not in done]
    began_s = monotonic_s()
    for number, (seed, case) in enumerate(missing, start=1):
        is_first = case == experiment.cases[0]
        budget = None if is_first else done[seed, experiment.cases[0].name].num_tokens
        started_s = monotonic_s()
        run = carry_out(experiment, case, seed, budget=budget)
        done[seed, case.name] = run
        now_s = monotonic_s()
        left_s = (len(missing) - number) * (now_s - began_s) / number
        _say(f"{number}/{len(missing)}  {_describe(case, run)}  {format_duration(now_s - started_s)}  ETA {format_duration(left_s)}")  # fmt: skip
        _write_results(experiment, cases, done, target)
    return _write_results(experiment, cases, done, target)


def _describe(case: Case, run: FinishedRun) -> str:
    if run.error is not None:
        return f"{case.name} seed {run.seed}: failed in step {len(run.records) + 1}: {run.error}"
    reward = "none" if run.final_reward is None else f"{run.final_reward:.3f}"
    return f"{case.name} seed {run.seed}: reward {reward}  {len(run.records)} steps  {run.num_tokens:,} tokens"


def _claim(experiment: Experiment) -> None:
    """Write the settings into the folder, or check that it has the same."""
    path = experiment.out / "settings.json"
    if not path.exists():
        experiment.out.mkdir(parents=True, exist_ok=True)
        _write(path, json.dumps(experiment.settings, indent=2))
    elif (found := json.loads(path.read_text(encoding="utf-8"))) != experiment.settings:
        msg = f"{experiment.out} holds runs of other settings ({found}), not of {experiment.settings}; give another --out, or delete the folder"
        raise BenchmarkError(msg)


def _write_results(
    experiment: Experiment,
    cases: Sequence[Case],
    done: dict[tuple[int, str], FinishedRun],
    target: float,
) -> str:
    runs_of = {
        case.name: [run for (_, name), run in sorted(done.items()) if name == case.name]
        for case in cases
    }
    runs_of = {name: runs for name, runs in runs_of.items() if runs}
    numbers = compare(runs_of, target=target)
    num_seeds = len({seed for seed, _ in done})
    table = f"{markdown_table(numbers, target=target)}\n\n{caption(num_seeds, target=target)}\n"
    _write(experiment.out / "table.md", table)
    _write(
        experiment.out / "curves.svg", curves_svg(runs_of, title=experiment.title, target=target)
    )
    result = {
        "settings": {**experiment.settings, "target": target},
        "environment": describe_environment(),
        "cases": {
            name: {**numbers[name], "runs": [_json(run) for run in runs]}
            for name, runs in runs_of.items()
        },
    }
    _write(experiment.out / "results.json", json.dumps(result, indent=1))
    return table


def _json(run: FinishedRun) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "error": run.error,
        "reward": run.final_reward,
        "eval_reward": run.eval_reward,
        "num_tokens": run.num_tokens,
        "curve": run.curve,
    }


def _write(path: Path, text: str) -> None:
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


# ---------------------------------------------------------------- command line


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print the table; exit code 130 after Ctrl-C."""
    args = _parse(arguments)
    what = f"{args.task}_mismatch" if args.mismatch else args.task
    experiment = Experiment(
        task=args.task,
        num_steps=args.steps,
        is_mismatched=args.mismatch,
        overrides=tuple(args.overrides),
        out=args.out or ROOT / "runs" / "algorithms" / what,
    )
    apply_threads()
    try:
        cases = _chosen(experiment, args.presets)
        table = compare_cases(experiment, cases, args.seeds, args.target)
    except ZerogapError as error:
        _say(f"error: {error}")
        return 1
    except (Stopped, KeyboardInterrupt):
        _say(f"interrupted; {experiment.out} keeps what is done, and the same command continues")
        return INTERRUPTED
    sys.stdout.write(f"{table}\n{experiment.out}: table.md, results.json, curves.svg\n")
    return 0


def _chosen(experiment: Experiment, names: Sequence[str] | None) -> list[Case]:
    """The named cases, in the order of the table; the first one always, because it sets the budget."""
    known = [case.name for case in experiment.cases]
    if unknown := sorted(set(names or ()) - set(known)):
        msg = f"--presets {' '.join(unknown)}: not a case of this comparison; it has {', '.join(known)}"
        raise BenchmarkError(msg)
    wanted = {known[0], *(names or known)}
    return [case for case in experiment.cases if case.name in wanted]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="After --, --section.key value applies to all runs.",
    )
    parser.add_argument("--task", choices=TASKS, default="tiny")
    parser.add_argument("--seeds", type=_positive, default=3, help="runs of a case (default: 3)")
    parser.add_argument(
        "--steps", type=_positive, default=100, help="steps of the first case (default: 100)"
    )
    parser.add_argument("--presets", nargs="+", help="some cases; the first one is always run")
    parser.add_argument("--mismatch", action="store_true", help="compare corrections instead")
    parser.add_argument(
        "--target", type=float, default=0.8, help="reward to be reached (default: 0.8)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of all runs (default: runs/algorithms/TASK)"
    )
    words = list(sys.argv[1:] if arguments is None else arguments)
    # argparse would take flags after "--" for the words of --presets.
    cut = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:cut])
    args.overrides = words[cut + 1 :]
    return args


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        msg = f"{text}: give 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return number


if __name__ == "__main__":
    sys.exit(main())
