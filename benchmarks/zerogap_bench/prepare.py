"""Prepares the same weights in the format of each side, and the same prompts as ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerogap_bench.flops import ModelShape
from zerogap_bench.prompts import word_problems
from zerogap_bench.workers import Worker

if TYPE_CHECKING:
    from zerogap.data import Tokenizer


@dataclass(frozen=True)
class Prepared:
    """Model files and prompts, as plain values that can be sent to another process."""

    model: str
    """Model source for zerogap."""
    folder: str
    """The same weights and tokenizer for transformers, TRL and vLLM; fp32."""
    gguf: str | None
    """The same weights for llama.cpp, fp32; None without llama.cpp."""
    prompt_texts: tuple[str, ...]
    """Rendered with the chat template, if the tokenizer has one."""
    prompt_ids: tuple[tuple[int, ...], ...]
    shape: ModelShape
    max_positions: int
    """Longest sequence that the model supports, in tokens."""
    threads: int
    kernels: str
    """zerogap's kernels on this machine."""

    def describe(self) -> str:
        """One line."""
        lengths = [len(ids) for ids in self.prompt_ids]
        return f"{self.kernels}; prompts of {min(lengths)}..{max(lengths)} tokens"


def prepare(
    model: str, folder: Path, *, num_prompts: int, threads: int | None, with_gguf: bool
) -> Prepared:
    """Export ``model`` into ``folder`` and render prompts, in a process that then ends.

    Args:
        model: anything zerogap loads.
        folder: gets the exported weights.
        num_prompts: different prompts.
        threads: of all sides; None: torch's default.
        with_gguf: export for llama.cpp as well.
    """
    with Worker("preparation", "zerogap_bench.prepare:Preparation", threads=threads) as worker:
        return worker.call(
            "prepare", model=model, folder=folder, num_prompts=num_prompts, with_gguf=with_gguf
        )


class Preparation:
    """Runs in a separate process, so that loading and exporting do not count in any side's peak memory."""

    def prepare(self, *, model: str, folder: Path, num_prompts: int, with_gguf: bool) -> Prepared:
        """See ``prepare``."""
        import torch

        from zerogap.config.model import ModelSection
        from zerogap.kernels import kernel_report
        from zerogap.models import export_hf
        from zerogap.run import load_policy

        policy = load_policy(ModelSection(path=model), seed=0)
        export_hf(policy.model, folder / "model", save_tokenizer=policy.tokenizer.save)
        gguf = folder / "model.gguf"
        if with_gguf:
            from zerogap_bench.gguf_file import write_gguf

            write_gguf(policy.model, gguf)
        texts, ids = _render(policy.tokenizer, word_problems(num_prompts))
        return Prepared(
            model=model,
            folder=str(folder / "model"),
            gguf=str(gguf) if with_gguf else None,
            prompt_texts=tuple(texts),
            prompt_ids=tuple(ids),
            shape=ModelShape.from_config(policy.model.config, vocab_size=policy.vocab_limit),
            max_positions=policy.model.config.max_positions,
            threads=torch.get_num_threads(),
            kernels=kernel_report(),
        )


def _render(tokenizer: Tokenizer, problems: list[str]) -> tuple[list[str], list[tuple[int, ...]]]:
    if not tokenizer.has_chat_template:
        return problems, [tuple(tokenizer.encode(text, add_special=True)) for text in problems]
    chats = [[{"role": "user", "content": problem}] for problem in problems]
    texts = [tokenizer.render_chat(chat) for chat in chats]
    return texts, [tuple(tokenizer.apply_chat_template(chat)) for chat in chats]
