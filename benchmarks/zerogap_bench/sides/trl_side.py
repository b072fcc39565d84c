"""TRL's side: ``GRPOTrainer`` on the same weights, prompts, lengths and objective. Runs in a worker process.

fp32, no reference model (beta 0), no gradient checkpointing: the fastest setting on a CPU that fits in memory.
"""

import warnings
from collections.abc import Callable
from random import Random
from time import perf_counter
from typing import Any

import datasets
import torch
import transformers
import trl

from zerogap_bench.machine import OthersLoad, PeakMemory
from zerogap_bench.prepare import Prepared
from zerogap_bench.records import PeerMeasured
from zerogap_bench.shapes import RunShape


class TrlStep:
    """Whole GRPO steps of TRL; every call of ``run`` is one optimizer step."""

    def __init__(
        self, *, prepared: Prepared, shape: RunShape, micro_batch: int, learning_rate: float, output_dir: str
    ) -> None:  # fmt: skip
        # TRL calls functions that transformers has renamed.
        warnings.simplefilter("ignore", FutureWarning)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        datasets.disable_progress_bars()
        self._clock = _StepClock()
        self._trainer = self._build(prepared, shape, micro_batch, learning_rate, output_dir)
        self._trainer.remove_callback(transformers.PrinterCallback)
        self._warm_up(prepared)

    def run(self, *, seed: int) -> PeerMeasured:
        """One step, timed from its first generated token to the end of the optimizer's update."""
        transformers.set_seed(seed)
        self._clock.start()
        with OthersLoad() as others:
            self._trainer.train()
        assert self._clock.step_s is not None, "TRL ended without an optimizer step"
        return PeerMeasured(
            seconds=self._clock.step_s,
            others_load=others.share,
            peak_rss_gb=PeakMemory().gb,
            generate_s=self._clock.generate_s,
        )

    def _build(
        self, prepared: Prepared, shape: RunShape, micro_batch: int, learning_rate: float, output_dir: str
    ) -> trl.GRPOTrainer:  # fmt: skip
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(prepared.folder)
        prompts = prepared.prompt_texts[: shape.num_prompts]
        theirs = tuple(map(tuple, tokenizer(list(prompts))["input_ids"]))
        assert theirs == prepared.prompt_ids[: shape.num_prompts], "TRL would see other prompt ids"
        model = transformers.AutoModelForCausalLM.from_pretrained(
            prepared.folder, dtype=torch.float32
        )
        model.generate = self._clock.timing_generation(model.generate)
        random = Random(0)

        def reward(completions: list[str], **_columns: object) -> list[float]:
            return [random.random() for _ in completions]

        return trl.GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=reward,
            train_dataset=datasets.Dataset.from_dict({"prompt": list(prompts)}),
            callbacks=[self._clock],
            args=trl.GRPOConfig(
                output_dir=output_dir,
                max_steps=1,
                per_device_train_batch_size=micro_batch,
                gradient_accumulation_steps=shape.num_sequences // micro_batch,
                num_generations=shape.group_size,
                max_completion_length=shape.max_new_tokens,
                generation_kwargs={"min_new_tokens": shape.max_new_tokens},
                temperature=1.0,
                beta=0.0,
                learning_rate=learning_rate,
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=False,
                shuffle_dataset=False,
                dataloader_pin_memory=False,
                disable_tqdm=True,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
            ),
        )

    def _warm_up(self, prepared: Prepared) -> None:
        """Run a short forward, backward and generation, as zerogap's side does before it is timed."""
        model = self._trainer.model
        ids = torch.tensor([prepared.prompt_ids[0][:16]] * 2)
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=True)


class _StepClock(transformers.TrainerCallback):
    """Times an optimizer step, and the generation inside it."""

    def start(self) -> None:
        """Reset the times."""
        self.step_s: float | None = None
        self.generate_s = 0.0

    def on_step_begin(self, *_arguments: Any, **_state: Any) -> None:
        """Called by the trainer."""
        self._began_s = perf_counter()

    def on_step_end(self, *_arguments: Any, **_state: Any) -> None:
        """Called by the trainer."""
        self.step_s = perf_counter() - self._began_s

    def timing_generation(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """``generate`` that adds its duration to ``generate_s``."""
        self.start()

        def timed(*arguments: Any, **options: Any) -> Any:
            began_s = perf_counter()
            out = generate(*arguments, **options)
            self.generate_s += perf_counter() - began_s
            return out

        return timed
