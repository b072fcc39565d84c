"""One model definition for engine and trainer: configuration, forward pass, weights in and out.

In: packed token ids, positions and an ``Attention``. Out: hidden states. Weights are loaded from a Hugging Face
folder, the hub or a GGUF file, and exported as a Hugging Face folder. transformers is never imported here.
"""

from zerogap.models.attention import Attention
from zerogap.models.causal_lm import CausalLM, Precision
from zerogap.models.choices import ChoiceColumn, Choices
from zerogap.models.config import ModelConfig
from zerogap.models.export import export_bytes, export_hf
from zerogap.models.families import FAMILIES, find_family
from zerogap.models.hf_config import config_from_hf, config_to_hf
from zerogap.models.loading import LoadedModel, load_model
from zerogap.models.names import hf_tensors
from zerogap.models.rope import RopeScaling
from zerogap.models.sources import resolve_source

__all__ = [
    "FAMILIES",
    "Attention",
    "CausalLM",
    "ChoiceColumn",
    "Choices",
    "LoadedModel",
    "ModelConfig",
    "Precision",
    "RopeScaling",
    "config_from_hf",
    "config_to_hf",
    "export_bytes",
    "export_hf",
    "find_family",
    "hf_tensors",
    "load_model",
    "resolve_source",
]
