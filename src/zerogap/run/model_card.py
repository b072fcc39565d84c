"""The README.md of an exported model: what it is, how it was trained, how to load it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zerogap
from zerogap.config import RunConfig
from zerogap.config.load import config_to_toml
from zerogap.obs import read_jsonl
from zerogap.run_folder import RunFolder

FILE_NAME = "README.md"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_EVALUATIONS = {
    "eval/reward/mean": "mean reward of held-out prompts",
    "eval/sampled/reward/mean": "the same, sampled",
}


def model_card(config: RunConfig, folder: RunFolder, *, step: int) -> str:
    """Markdown with the front matter of the Hugging Face hub; local paths appear by their last part only.

    Args:
        config: the recipe.
        folder: of the run; its metrics are read.
        step: after which the weights are exported.
    """
    source = config.model.path
    is_hub_id = source is not None and _HUB_ID.fullmatch(source) and not Path(source).exists()
    name = "random weights" if source is None else source if is_hub_id else Path(source).name
    base = f"base_model: {source}\n" if is_hub_id else ""
    rows = "".join(f"| {what} | {value:.3f} |\n" for what, value in _results(folder, step).items())
    table = f"\n| after step {step} | |\n| --- | --- |\n{rows}" if rows else ""
    return f"""---
library_name: transformers
{base}tags:
- reinforcement-learning
- zerogap
---

{name}, trained for {step} of {config.run.steps} steps with the loss `{config.loss.kind}` by zerogap {zerogap.__version__}.
{table}
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
```

The recipe:

```toml
{config_to_toml(_without_paths(config)).strip()}
```
"""


def _results(folder: RunFolder, step: int) -> Mapping[str, float]:
    lines = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    line: Mapping[str, Any] = next((line for line in lines if line["step"] == step), {})
    named = {"reward/mean": "mean reward of the step's completions", **_EVALUATIONS}
    return {what: line[key] for key, what in named.items() if key in line}


def _without_paths(config: RunConfig) -> RunConfig:
    """Without the folders of the machine that trained it."""
    changes: dict[str, Any] = {
        "run": config.run.model_copy(update={"dir": Path(config.run.dir).name}),
    }
    for key in ("model", "data", "teacher"):
        section = getattr(config, key)
        shorter = {
            name: Path(path).name
            for name in ("path", "eval_path", "tokenizer")
            if isinstance(path := getattr(section, name, None), str) and Path(path).is_absolute()
        }
        if shorter:
            changes[key] = section.model_copy(update=shorter)
    return config.model_copy(update=changes)
