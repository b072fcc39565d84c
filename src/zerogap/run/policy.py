"""The policy: a model with its tokenizer, how to load it, and how to build an engine on it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerogap.config.engine import EngineConfig
from zerogap.config.env import read_environment
from zerogap.config.model import ModelInit, ModelSection
from zerogap.data import Tokenizer, byte_tokenizer, write_tokenizer_files
from zerogap.engine import Engine, Messages
from zerogap.errors import ModelError
from zerogap.kernels import (
    PAGE_SIZE,
    VOCAB_CHUNK,
    FastGemm,
    Gemm,
    InvarianceProbe,
    ensure_batch_invariance,
    time_gemm,
)
from zerogap.models import (
    CausalLM,
    ModelConfig,
    Precision,
    find_family,
    load_model,
    resolve_source,
)

_LIMITS = EngineConfig()
_PROBED_LAYERS = 4
"""Enough weights to exceed the processor's caches between two passes."""
_PROBED_ROWS = 512
"""With more rows, the time per row stays the same."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A model and its tokenizer. Engine and trainer hold the same ``model``, unless the engine is given a copy."""

    model: CausalLM
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    """Every id that the model or the tokenizer declares as the end of a turn."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """The source's generation_config.json; exports contain it."""

    @property
    def vocab_limit(self) -> int:
        """The tokenizer does not know ids from this one on; they are never drawn nor scored."""
        return self.model.head.vocab_limit

    def __post_init__(self) -> None:
        """Limit the model's vocabulary to the ids that the tokenizer knows."""
        known = min(self.tokenizer.vocab_size, self.model.config.vocab_size)
        self.model.limit_vocabulary(known)

    def encode(self, prompt: str | Messages) -> list[int]:
        """Ids of text as it is, or of messages through the chat template; with one leading BOS if the model wants one."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True)
        return self.tokenizer.apply_chat_template(prompt)

    def probe(self) -> InvarianceProbe:
        """Make GEMM batch-invariant on this model's shapes, and test it."""
        return ensure_batch_invariance(self.model.gemm_shapes())

    def fastest_gemm(self, *, engine_rows: int, trainer_rows: int) -> FastGemm:
        """Time both kinds of GEMM on this model's weights, for each side's number of rows.

        Args:
            engine_rows: rows of a decode step (``engine.max_running``).
            trainer_rows: rows of a forward and backward pass (``train.micro_batch_tokens``).
        """
        matrices = [p.detach() for p in self.model.layers[:_PROBED_LAYERS].parameters() if p.dim() == 2]  # fmt: skip
        head = self.model.head_weight.detach()[: min(VOCAB_CHUNK, self.vocab_limit)]
        per_layer = len(matrices) // min(_PROBED_LAYERS, len(self.model.layers))
        return FastGemm(
            engine=time_gemm([*matrices, head], num_rows=engine_rows, with_gradients=False),
            # With many rows, computing takes longer than reading the weights, so one layer is enough.
            trainer=time_gemm(
                [*matrices[:per_layer], head],
                num_rows=min(_PROBED_ROWS, trainer_rows),
                with_gradients=True,
            ),
        )

    def engine(
        self,
        limits: EngineConfig = _LIMITS,
        *,
        model: CausalLM | None = None,
        gemm: Gemm = "exact",
        seed: int = 0,
        weight_version: int = 0,
    ) -> Engine:
        """An engine on this model, or on a copy with its own weights and precision (``model.copied``)."""
        return Engine(
            model or self.model,
            kv_cache_tokens=kv_cache_tokens(self.model.config, limits),
            max_running=limits.max_running,
            max_scheduled_tokens=limits.max_scheduled_tokens,
            prefix_cache=limits.prefix_cache,
            eos_token_ids=self.eos_token_ids,
            detokenizer=self.tokenizer.decode,
            encode=self.encode,
            gemm=gemm,
            weight_version=weight_version,
            seed=seed,
        )


def kv_cache_tokens(config: ModelConfig, limits: EngineConfig) -> int:
    """Size of the KV cache in tokens, from the limit in tokens or in GiB."""
    if limits.kv_cache_tokens is not None:
        return -(-limits.kv_cache_tokens // PAGE_SIZE) * PAGE_SIZE
    bytes_per_token = 2 * 4 * config.num_layers * config.num_kv_heads * config.head_dim
    return int(limits.kv_cache_gib * 2**30 / bytes_per_token) // PAGE_SIZE * PAGE_SIZE


def load_policy(source: ModelSection | str | Path, *, seed: int = 0) -> Policy:
    """A pretrained policy, or one with random weights.

    Args:
        source: a folder, hub id, ``.gguf`` file or ``package:<module>/<file>``; or a recipe's [model].
        seed: of random weights.

    Raises:
        ModelError, DataError: the weights or the tokenizer cannot be found or read.
    """
    section = source if isinstance(source, ModelSection) else ModelSection(path=str(source))
    if section.init is not None:
        tokenizer = _named_tokenizer(section.tokenizer or "byte")
        return _random_policy(section.init, tokenizer, seed=seed, precision=section.dtype)
    loaded = load_model(section.path or "", precision=section.dtype)
    named = section.tokenizer
    tokenizer = _named_tokenizer(named) if named else Tokenizer.load(tokenizer_folder(loaded.path))
    eos = set(loaded.model.config.eos_token_ids) | set(tokenizer.eos_token_ids)
    return Policy(
        model=loaded.model,
        tokenizer=tokenizer,
        eos_token_ids=tuple(sorted(eos)),
        generation=loaded.generation,
    )


def _random_policy(
    init: ModelInit, tokenizer: Tokenizer, *, seed: int, precision: Precision
) -> Policy:
    config = find_family(init.family).config_class(
        **init.model_dump(),
        vocab_size=tokenizer.vocab_size,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=tokenizer.eos_token_ids,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = CausalLM(config, precision=precision).init_weights(seed=seed)
    return Policy(model=model, tokenizer=tokenizer, eos_token_ids=tokenizer.eos_token_ids)


def _named_tokenizer(name: str) -> Tokenizer:
    if name == "byte":
        return byte_tokenizer()
    return Tokenizer.load(tokenizer_folder(resolve_source(name, with_weights=False)))


def tokenizer_folder(path: Path) -> Path:
    """The folder with a model's tokenizer files: the model's folder, or one written from the metadata of a GGUF file."""
    if path.is_dir():
        return path
    if path.suffix != ".gguf":
        msg = f"{path} is neither a folder nor a .gguf file, so it holds no tokenizer; give one of those"
        raise ModelError(msg)
    stat = path.stat()
    key = hashlib.sha256(
        f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()
    ).hexdigest()[:16]
    folder = read_environment().cache / "tokenizers" / key
    try:
        if not (folder / "tokenizer.json").exists():
            write_tokenizer_files(path, folder)
    except OSError as error:
        msg = f"the tokenizer of {path} cannot be stored in {folder} ({error.strerror}); set ZEROGAP_CACHE to a folder that you can write, on a disk with room"
        raise ModelError(msg) from error
    return folder
