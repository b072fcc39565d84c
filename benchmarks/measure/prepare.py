"""What all sides start from: the same weights as a Hugging Face folder, and the same prompts as ids."""

from dataclasses import dataclass
from pathlib import Path

from measure.flops import ModelShape
from measure.prompts import word_problems
from measure.workers import Worker


@dataclass(frozen=True)
class Prepared:
    """Plain values that cross processes."""

    model: str
    """Source that zerogap loads."""
    folder: str
    """The same weights and tokenizer for transformers and TRL; fp32."""
    prompt_texts: tuple[str, ...]
    """Rendered with the chat template where there is one."""
    prompt_ids: tuple[tuple[int, ...], ...]
    shape: ModelShape
    kernels: str
    """Which of zerogap's kernels run here."""

    def describe(self) -> str:
        """One line."""
        lengths = [len(ids) for ids in self.prompt_ids]
        return f"{self.kernels}; prompts of {min(lengths)}..{max(lengths)} tokens"


def prepare(model: str, folder: Path, *, num_prompts: int, threads: int) -> Prepared:
    """Export ``model`` into ``folder`` and render prompts, in a process that then ends."""
    with Worker("preparation", "measure.prepare:Preparation", threads=threads) as worker:
        return worker.call("prepare", model=model, folder=folder, num_prompts=num_prompts)


class Preparation:
    """Lives in a worker process, so that loading and exporting are in nobody's peak memory."""

    def prepare(self, *, model: str, folder: Path, num_prompts: int) -> Prepared:
        from zerogap.config.model import ModelSection
        from zerogap.kernels import kernel_report
        from zerogap.models import export_hf
        from zerogap.run.policy import load_policy

        policy = load_policy(ModelSection(path=model), seed=0)
        export_hf(policy.model, folder, save_tokenizer=policy.tokenizer.save)
        texts, ids = _render(policy.tokenizer, word_problems(num_prompts))
        return Prepared(
            model=model,
            folder=str(folder),
            prompt_texts=tuple(texts),
            prompt_ids=tuple(ids),
            shape=ModelShape.from_config(policy.model.config, vocab_size=policy.vocab_limit),
            kernels=kernel_report(),
        )


def _render(tokenizer, problems: list[str]) -> tuple[list[str], list[tuple[int, ...]]]:
    if not tokenizer.has_chat_template:
        return problems, [tuple(tokenizer.encode(text, add_special=True)) for text in problems]
    chats = [[{"role": "user", "content": problem}] for problem in problems]
    texts = [tokenizer.render_chat(chat) for chat in chats]
    return texts, [tuple(tokenizer.apply_chat_template(chat)) for chat in chats]
