"""The commands that take a model, and the library example, on an exported tiny model."""

import io
import json
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from helpers.commands import zerogap, zerogap_process
from helpers.tiny_models import tiny_model

from zerogap.data import byte_tokenizer
from zerogap.data.byte_tokenizer import BYTE_VOCAB_SIZE, EOS_TOKEN_ID
from zerogap.models import export_hf

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_model(
        "qwen3", vocab_size=BYTE_VOCAB_SIZE, eos_token_ids=(EOS_TOKEN_ID,), max_positions=256
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    export_hf(model, folder, save_tokenizer=byte_tokenizer().save)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_generate_is_repeatable_with_a_seed(model_folder: Path):
    arguments = (
        "generate",
        model_folder,
        "--raw",
        "--prompt",
        "abc",
        "--max-new-tokens",
        "8",
        "--seed",
        "3",
    )
    first, second = zerogap_process(*arguments), zerogap(*arguments)
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.strip()


def test_generate_shows_every_completion_of_every_prompt(model_folder: Path):
    done = zerogap(
        "generate",
        model_folder,
        "--prompt",
        "abc",
        "--prompt",
        "xyz",
        "--n",
        "2",
        "--max-new-tokens",
        "4",
    )
    assert done.returncode == 0, done.stderr
    titles = [line for line in done.stdout.splitlines() if line.startswith("--- prompt")]
    assert titles == [f"--- prompt {p}, completion {c}" for p in (1, 2) for c in (1, 2)]


def test_generate_says_which_model_it_cannot_find(tmp_path: Path):
    done = zerogap("generate", tmp_path / "nothing", "--prompt", "abc")
    assert done.returncode == 2
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


def test_eval_grades_a_model_on_a_recipe(model_folder: Path):
    done = zerogap(
        "eval", model_folder, ROOT / "recipes" / "tiny.toml", "--evaluate.samples", "2", "--json"
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert metrics["eval/num_prompts"] == 12
    assert 0 <= metrics["eval/reward/mean"] <= 1
    assert metrics["eval/sampled/best/mean"] >= metrics["eval/sampled/reward/mean"]


def test_certify_proves_nine_promises_on_a_model_folder(model_folder: Path):
    done = zerogap("certify", model_folder, "--quiet")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert "".join(line.split()[0] for line in lines[1:-1]) == "123456789"
    assert all("  pass  " in line for line in lines[1:-1])
    assert lines[-1].startswith("certified: all 9 promises hold here")


def lines_of_example(name: str, *arguments: Path) -> list[str]:
    """What an example prints; in this process, which has loaded everything already."""
    with (
        redirect_stdout(io.StringIO()) as out,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(ROOT / "examples" / name))
    return out.getvalue().splitlines()


def test_the_library_example_runs_with_a_gap_of_zero(model_folder: Path):
    lines = lines_of_example("library.py", model_folder)
    assert len(lines) == 3
    assert all(line.endswith("largest gap 0.0 nats") for line in lines)


def test_the_engine_example_takes_text_and_messages(model_folder: Path):
    lines = lines_of_example("generate.py", model_folder)
    assert len(lines) == 4
    assert all(re.search(r": \d+ tokens, log-prob -\d+\.\d\d$", line) for line in lines)


def test_the_example_in_the_readme_is_the_one_that_is_tested():
    code = (ROOT / "examples" / "library.py").read_text(encoding="utf-8").split('"""', 2)[2].strip()
    assert code in (ROOT / "README.md").read_text(encoding="utf-8")
