"""Recipes of the package are found by name, listed and copied; a file goes before a name."""

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from zerogap.cli import main
from zerogap.config.load import load_config
from zerogap.config.recipes import find_recipe, first_sentence, named_recipes
from zerogap.errors import ConfigError

ROOT = Path(__file__).parents[3]


def test_every_recipe_has_a_name_and_says_what_it_is():
    found = named_recipes()
    assert {p.relative_to(ROOT / "recipes") for p in found.values()} == {
        p.relative_to(ROOT / "recipes") for p in (ROOT / "recipes").rglob("*.toml")
    }
    assert list(found)[:3] == ["mismatched", "quickstart", "tiny"]
    for name, path in found.items():
        assert len(first_sentence(path)) > 20, name
    assert first_sentence(found["losses/dr_grpo"]) == "Dr. GRPO: GRPO without its two biases"


def test_a_run_by_name_is_the_run_of_the_file():
    assert load_config(["tiny", "losses/dapo"]).config == load_config(
        [ROOT / "recipes" / "tiny.toml", ROOT / "recipes" / "losses" / "dapo.toml"]
    ).config  # fmt: skip
    assert load_config(["quickstart"]).config.run.dir == "runs/quickstart"


def test_a_file_of_the_same_name_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert find_recipe("tiny") == named_recipes()["tiny"]
    (tmp_path / "tiny").rmdir()
    (tmp_path / "tiny").write_text("")
    assert find_recipe("tiny") == Path("tiny")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("quickstrt", "did you mean quickstart?"),
        ("losses/dapoo", "did you mean losses/dapo?"),
        ("zzz", "run `zerogap recipes` for the names"),
        ("none.toml", "no such file; check the path, or run `zerogap recipes`"),
    ],
)
def test_what_is_neither_says_what_there_is(tmp_path, monkeypatch, given, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        load_config([given])
    assert expected in str(error.value)


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b""], ids=["BOM", "none"])
def test_a_byte_order_mark_changes_nothing(tmp_path, start):
    path = tmp_path / "tiny.toml"
    path.write_bytes(start + named_recipes()["tiny"].read_bytes())
    assert load_config([path]).config == load_config(["tiny"]).config


def test_a_recipe_that_is_not_utf8_names_the_byte(tmp_path):
    (tmp_path / "x.toml").write_bytes("# für".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"x\.toml: not UTF-8 at byte 3; save the file as UTF-8"):
        load_config([tmp_path / "x.toml"])


def test_the_list_fits_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for name in named_recipes():
        assert sum(line.startswith(f"{name} ") for line in lines) == 1


def test_a_copy_is_the_recipe_and_replaces_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "losses/dapo"]) == 0
    assert "zerogap train dapo.toml" in capsys.readouterr().out
    assert Path("dapo.toml").read_text() == named_recipes()["losses/dapo"].read_text()
    Path("dapo.toml").write_text("mine")
    assert main(["init", "losses/dapo"]) == 2
    assert "zerogap init losses/dapo OTHER.toml" in capsys.readouterr().err
    assert Path("dapo.toml").read_text() == "mine"
    assert main(["init", "losses/dapo", "none/x.toml"]) == 2
    assert "no folder none" in capsys.readouterr().err
    assert main(["init", "quickstrt"]) == 2
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_the_wheel_brings_them(tmp_path):
    """As pip builds it; hatchling runs in this process."""
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(path).namelist()
    assert {n for n in names if n.startswith("zerogap/recipes/")} == {
        f"zerogap/recipes/{name}.toml" for name in named_recipes()
    }
    assert "zerogap/py.typed" in names
