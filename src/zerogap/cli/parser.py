"""The arguments of every command, and the examples in ``--help``."""

from __future__ import annotations

import argparse
from typing import TypeAlias

from zerogap import __version__
from zerogap.cli import recorded_arguments
from zerogap.cli.audit import audit
from zerogap.cli.capsule import capsule, replay
from zerogap.cli.certify import certify
from zerogap.cli.evaluate import evaluate
from zerogap.cli.explain import explain
from zerogap.cli.export import export
from zerogap.cli.generate import generate
from zerogap.cli.recipes import init, recipes
from zerogap.cli.train import train
from zerogap_bench.arguments import EXAMPLES, add_arguments
from zerogap_bench.command import bench

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

_EXAMPLES = """examples:
  zerogap recipes                    what there is
  zerogap certify quickstart
  zerogap train quickstart
  zerogap generate runs/quickstart/export --prompt "What is 6 times 7?"
  zerogap eval runs/quickstart/export quickstart
  zerogap export runs/quickstart my-model
  zerogap audit runs/quickstart --html audit.html
  zerogap bench rollout
"""

_TRAIN_EXAMPLES = """To continue an interrupted run, give the same command again.
Exit code: 0 done, 2 after an error, 3 if an alarm stopped the run (watch.stop), 130 after Ctrl-C, 143 after SIGTERM.

examples:
  zerogap train quickstart                                   a recipe of the package (`zerogap recipes`), or a file
  zerogap train quickstart --run.steps 20 --train.learning_rate 3e-6
  zerogap train base.toml mine.toml --run.dir runs/mine     later files override earlier ones, flags override files
  zerogap train quickstart --dry-run                        every key, its value and its source
  zerogap train quickstart --dry-run --explain              and its meaning
"""

_RECIPES_EXAMPLES = """examples:
  zerogap recipes                    what there is
  zerogap train tiny losses/dapo     one of losses/ on top of another recipe
"""

_INIT_EXAMPLES = """examples:
  zerogap init quickstart            writes quickstart.toml
  zerogap init losses/gspo mine.toml
"""

_EXPLAIN_EXAMPLES = """examples:
  zerogap explain                                   every table with its keys
  zerogap explain rollout.sampling.temperature
  zerogap explain corrections                       all keys of a table
"""

_GENERATE_EXAMPLES = """examples:
  zerogap generate Qwen/Qwen3-0.6B --prompt "Why is the sky blue?" --max-new-tokens 200
  zerogap generate ./model --prompt "Name a colour." --n 4 --temperature 1.0 --seed 7
  zerogap generate ./base-model --raw --prompt "Once upon a time"
  echo "What is 6 times 7?" | zerogap generate ./model --temperature 0
"""

_EVAL_EXAMPLES = """examples:
  zerogap eval runs/quickstart/export quickstart
  zerogap eval ./model quickstart --evaluate.samples 8 --json
"""

_CERTIFY_EXAMPLES = """Checks zerogap's promises on this machine and model, in about two minutes for 135 M parameters: a step with learning
rate 0 changes nothing; log-probs are batch-invariant; the gradient does not depend on micro-batches and packing; every
token carries the version of its weights; fingerprints cover every tensor; a saved step continues as itself; tensors move
as AdamW moves them; exports, memory and recipes survive a round trip. The model's files do not change. Exit code 0: all checks passed; 1: a check failed, and its line says what to do.

examples:
  zerogap certify Qwen/Qwen3-0.6B
  zerogap certify quickstart --model.dtype bf16
  zerogap certify ./model --numerics fast --json
"""

_EXPORT_EXAMPLES = """examples:
  zerogap export runs/quickstart my-model               a folder that transformers loads
  zerogap export runs/quickstart my-model --step 20     of an older checkpoint
  zerogap export runs/quickstart my-model --best        of the one with the best evaluation
"""

_MODEL_HELP = "folder in Hugging Face format, hub id, .gguf file, or package:<module>/<file>"
_RECIPE_HELP = "TOML file, or the name of a recipe of the package (`zerogap recipes`)"
_OVERRIDE_HELP = "any key of the recipe may follow as --section.key VALUE"


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command sets ``run`` to its function."""
    parser = argparse.ArgumentParser(
        prog="zerogap",
        description="Train language models with reinforcement learning. Trainer and inference engine are one policy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"zerogap {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_recipes(commands)
    _add_train(commands)
    _add_generate(commands)
    _add_evaluate(commands)
    _add_certify(commands)
    _add_export(commands)
    _add_recorded(commands)
    _add_bench(commands)
    return parser


def _add_recipes(commands: Commands) -> None:
    parser = _add(commands, "recipes", "list the recipes of the package", _RECIPES_EXAMPLES)
    parser.set_defaults(run=recipes)
    summary = "copy a recipe of the package into a file of your own"
    parser = _add(commands, "init", summary, _INIT_EXAMPLES)
    parser.set_defaults(run=init)
    parser.add_argument("name", metavar="NAME", help="as `zerogap recipes` lists it")
    parser.add_argument("out", metavar="OUT", nargs="?", help="default: NAME.toml, here")
    parser = _add(commands, "explain", "say what a key of a recipe means", _EXPLAIN_EXAMPLES)
    parser.set_defaults(run=explain)
    parser.add_argument("keys", nargs="*", metavar="KEY", help="a key or a table; none: list all")
    parser.add_argument("--markdown", action="store_true", help="print docs/recipe.md")


def _add_train(commands: Commands) -> None:
    parser = _add(commands, "train", "run a recipe", _TRAIN_EXAMPLES)
    parser.set_defaults(
        run=train,
        when_interrupted="; give the same command again to continue from the last checkpoint",
    )
    parser.add_argument(
        "recipes", nargs="+", metavar="RECIPE", help=f"{_RECIPE_HELP}; {_OVERRIDE_HELP}"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    parser.add_argument("--explain", action="store_true", help="with --dry-run: say what keys mean")
    recorded_arguments.add_quiet(parser)


def _add_generate(commands: Commands) -> None:
    parser = _add(commands, "generate", "continue prompts", _GENERATE_EXAMPLES)
    parser.set_defaults(run=generate)
    add = parser.add_argument
    add("model", metavar="MODEL", help=_MODEL_HELP)
    add(
        "--prompt",
        action="append",
        help="may be repeated; default: read one from standard input",
    )
    add("--system", help="system message")
    add("--raw", action="store_true", help="continue the text as it is, without the chat template")
    add("--n", type=int, default=1, help="completions per prompt (%(default)s)")
    add(
        "--max-new-tokens",
        type=int,
        default=256,
        help="maximum length of a completion (%(default)s)",
    )
    add("--temperature", type=float, default=0.7, help="0: greedy (%(default)s)")
    add("--top-p", type=float, default=1.0, help="keep this much probability mass (%(default)s)")
    add(
        "--top-k",
        type=int,
        default=-1,
        help="keep the k most likely tokens; -1 keeps all (%(default)s)",
    )
    add(
        "--min-p",
        type=float,
        default=0.0,
        help="keep tokens with at least this fraction of the top probability (%(default)s)",
    )
    add("--stop", action="append", default=[], help="text that ends a completion; may be repeated")
    add("--seed", type=int, help="seed of sampling; default: a new one each time")
    recorded_arguments.add_quiet(parser)


def _add_evaluate(commands: Commands) -> None:
    parser = _add(
        commands, "eval", "grade a model on a recipe's evaluation prompts", _EVAL_EXAMPLES
    )
    parser.set_defaults(run=evaluate)
    parser.add_argument(
        "model", metavar="MODEL", help=f"replaces the recipe's model: {_MODEL_HELP}"
    )
    parser.add_argument(
        "recipes", nargs="+", metavar="RECIPE", help=f"{_RECIPE_HELP}; {_OVERRIDE_HELP}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    recorded_arguments.add_quiet(parser)


def _add_certify(commands: Commands) -> None:
    summary = "check zerogap's promises on your model, machine and settings"
    parser = _add(commands, "certify", summary, _CERTIFY_EXAMPLES)
    parser.set_defaults(run=certify)
    subject = f"{_MODEL_HELP}; or TOML files with a model and settings; {_OVERRIDE_HELP}"
    parser.add_argument("subjects", nargs="+", metavar="MODEL|RECIPE", help=subject)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    recorded_arguments.add_quiet(parser)


def _add_export(commands: Commands) -> None:
    parser = _add(commands, "export", "write a run's weights as a model folder", _EXPORT_EXAMPLES)
    parser.set_defaults(run=export)
    parser.add_argument("run_dir", metavar="RUN", help="the run's folder")
    parser.add_argument("out", metavar="OUT", help="folder to create")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="of the checkpoint; default: the newest one")
    which.add_argument(
        "--best", action="store_true", help="the checkpoint with the best evaluation"
    )


def _add_recorded(commands: Commands) -> None:
    summary = "attribute the gap of a recorded step to its sources, over all tokens"
    parser = _add(commands, "audit", summary, recorded_arguments.AUDIT_EXAMPLES)
    parser.set_defaults(run=audit)
    recorded_arguments.add_audit(parser)
    summary = "write a recorded step into one file that others can replay"
    parser = _add(commands, "capsule", summary, recorded_arguments.CAPSULE_EXAMPLES)
    parser.set_defaults(run=capsule)
    recorded_arguments.add_capsule(parser)
    summary = "recompute a capsule's loss and gradient, and compare"
    parser = _add(commands, "replay", summary, recorded_arguments.REPLAY_EXAMPLES)
    parser.set_defaults(run=replay)
    recorded_arguments.add_replay(parser)


def _add_bench(commands: Commands) -> None:
    summary = "measure speed on this machine, beside installed alternatives"
    parser = _add(commands, "bench", summary, EXAMPLES)
    parser.set_defaults(run=bench)
    add_arguments(parser)


def _add(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(when_interrupted="")
    parser.add_argument("--traceback", action="store_true", help="show the traceback of an error")
    return parser
