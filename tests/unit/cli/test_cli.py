import errno
import io
import json
import os
import signal
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

from zerogap.cli import main
from zerogap.cli.overrides import TOP_LEVEL_KEYS, split_overrides
from zerogap.cli.parser import build_parser
from zerogap.config import RunConfig
from zerogap.config.load import config_from_toml
from zerogap.config.problems import sections_of
from zerogap.errors import ModelError
from zerogap.types import FinishReason, GenerateOutput

RECIPE = """
[run]
steps = 5
[model]
path = "m"
[data]
kind = "builtin"
name = "multiplication"
[reward]
kind = "last_number"
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return str(path)


def _step(rid, index, text, *, ended=None):
    """A completion so far: what the engine's stream gives."""
    ids = np.arange(len(text), dtype=np.int32)
    log_probs = -ids.astype(np.float32)
    output = GenerateOutput(
        rid=rid,
        index=index,
        prompt_ids=ids[:0],
        output_ids=ids,
        output_log_probs=log_probs,
        kept_log_mass=log_probs,
        finish_reason=FinishReason(ended or "stop"),
        weight_version=ids * 0,
        seed=11,
        text=text,
    )
    return SimpleNamespace(
        rid=rid, index=index, output_ids=ids, text=text, output=output if ended else None
    )


def test_train_gets_the_resolved_config(fake_run, recipe):
    fake_run.results["train"] = SimpleNamespace(is_alarmed=False, signal=None)
    assert main(["train", recipe, "--run.steps", "7", "--quiet", "--numerics=fast"]) == 0
    ((name, (config,), kwargs),) = fake_run.calls
    assert (name, config.run.steps, config.numerics) == ("train", 7, "fast")
    assert kwargs == {"quiet": True}


def test_a_script_can_tell_that_an_alarm_stopped_a_run(fake_run, recipe):
    fake_run.results["train"] = SimpleNamespace(is_alarmed=True, signal=None)
    assert main(["train", recipe]) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_script_can_tell_that_a_signal_ended_a_run(fake_run, recipe, number, code):
    fake_run.results["train"] = SimpleNamespace(is_alarmed=False, signal=number)
    assert main(["train", recipe]) == code


OWN = {
    "loss.function": ("--loss.kind", "import"),
    "advantage.function": ("--advantage.kind", "import"),
    "obs.on_step": (),
    "reward.function": ("--reward.kind", "import"),
}


@pytest.mark.parametrize("key", OWN)
def test_dry_run_imports_the_users_own_functions(recipe, key, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("def function(*_, **__): ...")
    command = ["train", recipe, *OWN[key], "--dry-run", f"--{key}"]
    assert main([*command, "mine:function"]) == 0
    capsys.readouterr()
    assert main([*command, "mine:missing"]) == 2
    found = capsys.readouterr()
    assert f"{key} = 'mine:missing': cannot be imported" in found.err
    assert "Traceback" not in found.err


def test_dry_run_prints_a_recipe_and_who_set_what(recipe, capsys):
    assert main(["train", recipe, "--dry-run", "--train.learning_rate", "1e-5"]) == 0
    text = capsys.readouterr().out
    assert config_from_toml(text).train.learning_rate == 1e-5
    assert tomllib.loads(text)["loss"]["clip_low"] == 0.2
    origins = dict(
        line.removeprefix("#").split(None, 1) for line in text.split("# set by\n")[1].splitlines()
    )
    assert origins["train.learning_rate"] == "--train.learning_rate"
    assert origins["model.path"] == recipe
    assert "loss.clip_low" not in origins


def test_an_error_to_correct_is_a_message_without_a_traceback(fake_run, recipe, capsys):
    assert main(["train", recipe, "--train.learning_rat", "1"]) == 2
    error = capsys.readouterr().err
    assert "did you mean train.learning_rate?" in error
    assert "Traceback" not in error
    fake_run.results["train"] = ModelError("no such folder")
    assert main(["train", recipe]) == 2
    assert capsys.readouterr().err == "zerogap train: no such folder\n"


@pytest.mark.parametrize(
    ("number", "path"),
    [(errno.ENOSPC, None), (errno.EACCES, "/x/y"), (errno.ENOTDIR, "/x/y"), (errno.EROFS, "/x")],
)
def test_a_disk_or_path_that_cannot_be_used_is_one_sentence(fake_run, recipe, capsys, number, path):
    fake_run.results["train"] = OSError(number, os.strerror(number), path)
    assert main(["train", recipe]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert os.strerror(number) in shown
    assert path is None or f"{path}: " in shown
    with pytest.raises(OSError, match=os.strerror(number)):
        main(["train", recipe, "--traceback"])


def test_an_error_of_a_users_function_keeps_its_traceback(fake_run, recipe):
    fake_run.results["train"] = FileNotFoundError(errno.ENOENT, "no such file", "/x")
    with pytest.raises(FileNotFoundError):
        main(["train", recipe])


def test_traceback_shows_where_an_error_came_from(fake_run, recipe):
    fake_run.results["train"] = ModelError("no such folder")
    with pytest.raises(ModelError):
        main(["train", recipe, "--traceback"])


def test_an_interrupt_says_how_to_go_on(fake_run, recipe, capsys):
    fake_run.results["train"] = KeyboardInterrupt()
    assert main(["train", recipe]) == 130
    assert "same command again" in capsys.readouterr().err


def test_generate_prints_one_completion_while_it_grows(fake_run, capsys):
    fake_run.results["generate_text"] = iter(
        [_step("0", 0, ""), _step("0", 0, "4"), _step("0", 0, "42", ended="length")]
    )
    given = [
        "--prompt",
        "6*7?",
        "--temperature",
        "0",
        "--system",
        "s",
        "--stop",
        "x",
        "--seed",
        "3",
    ]
    assert main(["generate", "model", *given]) == 0
    captured = capsys.readouterr()
    assert captured.out == "42\n"
    assert captured.err == "2 tokens, length, seed 11\n"
    ((_, (model, prompts, params), kwargs),) = fake_run.calls
    assert (model, prompts, params.temperature, params.stop) == ("model", ["6*7?"], 0.0, ("x",))
    assert params.sampling_seed == 3
    assert kwargs == {"system": "s", "is_raw": False}


def test_generate_prints_several_completions_as_they_end(fake_run, capsys):
    fake_run.results["generate_text"] = iter(
        [_step("1", 0, "c"), _step("0", 1, "b", ended="stop"), _step("1", 0, "cd", ended="length")]
    )
    assert main(["generate", "m", "--prompt", "p", "--prompt", "q", "--n", "2", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.splitlines() == [
        "--- prompt 1, completion 2",
        "b",
        "--- prompt 2, completion 1",
        "cd",
    ]


def test_generate_reads_a_prompt_from_standard_input(fake_run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    fake_run.results["generate_text"] = iter([_step("0", 0, "x", ended="stop")])
    assert main(["generate", "m"]) == 0
    assert fake_run.calls[0][1][1] == ["from a pipe"]


def test_generate_refuses_parameters_the_engine_would_refuse(fake_run, capsys):
    assert main(["generate", "m", "--prompt", "p", "--top-p", "2"]) == 2
    assert "top_p = 2.0 is not allowed" in capsys.readouterr().err
    assert fake_run.calls == []


def test_eval_prints_metrics_for_people_or_as_json(fake_run, recipe, capsys):
    assert main(["eval", "model", recipe, "--data.eval_size", "4"]) == 0
    assert capsys.readouterr().out.splitlines() == ["eval/reward/mean  0.25", "eval/num_prompts  4"]
    assert main(["eval", "model", recipe, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"eval/reward/mean": 0.25, "eval/num_prompts": 4}
    (_, (model, config), _), _ = fake_run.calls
    assert (model, config.data.eval_size) == ("model", 4)


def test_certify_takes_a_model_or_recipes(fake_run, recipe, capsys):
    fake_run.results["certify"] = SimpleNamespace(
        is_kept=True, verdicts=(), to_json=lambda: {"is_kept": True}
    )
    assert main(["certify", "package:m/f.gguf", "--numerics", "fast", "--engine.max_running", "3"]) == 0  # fmt: skip
    assert "certified: all" in capsys.readouterr().out
    assert main(["certify", recipe, "--model.dtype", "bf16", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == {"is_kept": True}
    (_, (of_model,), _), (_, (of_recipe,), kwargs) = fake_run.calls
    assert (of_model.model.path, of_model.numerics, of_model.engine.max_running) == ("package:m/f.gguf", "fast", 3)  # fmt: skip
    assert (of_recipe.model.path, of_recipe.model.dtype, kwargs) == ("m", "bf16", {"quiet": True})


def test_certify_says_by_its_exit_code_what_does_not_hold(fake_run, capsys):
    verdicts = tuple(SimpleNamespace(promise=p, is_kept=p != 2, seconds=1.0) for p in (1, 2))
    fake_run.results["certify"] = SimpleNamespace(is_kept=False, verdicts=verdicts)
    assert main(["certify", "m"]) == 1
    assert "1 of 2 promises fail here (2)" in capsys.readouterr().out
    assert main(["certify", "m", "other"]) == 2
    assert "certify takes one model" in capsys.readouterr().err


def test_export_passes_both_folders(fake_run, capsys):
    fake_run.results["export_run"] = 20
    for flags, given in (
        ([], {"step": None, "best": False}),
        (["--step", "20"], {"step": 20, "best": False}),
        (["--best"], {"step": None, "best": True}),
    ):
        assert main(["export", "runs/x", "out", *flags]) == 0
        _, paths, kwargs = fake_run.calls[-1]
        assert [str(path) for path in paths] == ["runs/x", "out"]
        assert kwargs == given
        shown = capsys.readouterr().out
        assert "after step 20" in shown
        assert "zerogap generate out" in shown
    with pytest.raises(SystemExit):
        main(["export", "runs/x", "out", "--best", "--step", "20"])


def test_audit_prints_lines_or_one_object_and_writes_the_page(fake_run, capsys):
    found = SimpleNamespace(to_json=lambda num_worst: {"worst": num_worst})
    fake_run.results |= {
        "audit_step": found,
        "describe_audit": ["a line"],
        "write_audit_page": "p.html",
    }
    assert main(["audit", "runs/x", "--step", "3", "--tokens", "7", "--html", "p.html"]) == 0
    assert capsys.readouterr().out.splitlines() == ["a line", "page: p.html"]
    assert main(["audit", "runs/x", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == {"worst": 5}
    calls = [(name, kwargs) for name, _, kwargs in fake_run.calls]
    assert calls == [
        ("audit_step", {"step": 3, "quiet": False}),
        ("describe_audit", {"num_worst": 7}),
        ("write_audit_page", {}),
        ("audit_step", {"step": None, "quiet": True}),
    ]


def test_capsule_passes_everything_on(fake_run, capsys):
    fake_run.results["describe_capsule"] = ["a line"]
    assert main(["capsule", "runs/x", "--step", "3", "c.zip", "--with-weights"]) == 0
    assert capsys.readouterr().out == "a line\n"
    name, paths, kwargs = fake_run.calls[0]
    assert (name, [str(path) for path in paths]) == ("make_capsule", ["runs/x", "c.zip"])
    assert kwargs == {"step": 3, "with_weights": True, "quiet": False}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["audit", "runs/x", "--tokens", "-3"], "'-3' is not a number of tokens; give 0 or more"),
        (["audit", "runs/x", "--html", "."], ". is a folder; give a file name"),
        (["audit", "runs/x", "--html", "old.zip/a.html"], "old.zip is not a folder"),
        (["capsule", "runs/x", "old.zip"], "old.zip exists, and a capsule never replaces a file"),
        (["capsule", "runs/x", "old.zip/new.zip"], "old.zip is not a folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_computed(
    arguments, message, fake_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.zip").write_bytes(b"kept")
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert fake_run.calls == []


@pytest.mark.parametrize(("is_equal", "code"), [(True, 0), (False, 1)])
def test_replay_says_by_its_exit_code_whether_it_is_equal(fake_run, is_equal, code):
    fake_run.results |= {"replay_capsule": SimpleNamespace(is_equal=is_equal), "describe_replay": []}  # fmt: skip
    assert main(["replay", "c.zip", "--model", "m"]) == code
    assert fake_run.calls[0][2] == {"model": "m", "quiet": False}


def test_overrides_are_told_apart_from_a_commands_own_arguments():
    words = [
        "train",
        "--run.steps",
        "-5",
        "a.toml",
        "--quiet",
        "--numerics",
        "fast",
        "b.toml",
        "--x.y=1",
    ]
    own, overrides = split_overrides(words)
    assert own == ["train", "a.toml", "--quiet", "b.toml"]
    assert overrides == ["--run.steps", "-5", "--numerics", "fast", "--x.y=1"]
    assert split_overrides(["generate", "m", "--prompt", "--a.b"])[1] == []


def test_every_key_outside_a_section_can_be_overridden():
    scalars = [n for n, f in RunConfig.model_fields.items() if not list(sections_of(f.annotation))]
    assert tuple(scalars) == TOP_LEVEL_KEYS


@pytest.mark.parametrize(
    "command",
    [
        "recipes",
        "init",
        "explain",
        "train",
        "generate",
        "eval",
        "certify",
        "export",
        "audit",
        "capsule",
        "replay",
        "bench",
    ],
)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as ending:
        build_parser().parse_args([command, "--help"])
    assert ending.value.code == 0
    assert f"  zerogap {command} " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["train"], ["train", "r.toml", "--quite"]])
def test_wrong_usage_exits_with_2(arguments):
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    assert ending.value.code == 2


def _modules_after(*arguments):
    code = "import sys; sys.argv[1:] = {!r}\nfrom zerogap.cli import main\ntry:\n main()\nexcept SystemExit:\n pass\nprint('MODULES', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code.format(list(arguments))],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split("MODULES ")[1].split())


def test_help_and_dry_run_import_nothing_heavy(recipe):
    heavy = {"torch", "transformers", "triton", "huggingface_hub"}
    light = _modules_after("--help")
    assert not light & (heavy | {"pydantic", "numpy", "rich"})
    assert not _modules_after("train", recipe, "--dry-run") & heavy
