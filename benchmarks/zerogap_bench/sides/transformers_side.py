"""transformers' side: batched ``generate`` with a KV cache, on the same weights and prompt ids. Runs in a worker process."""

from collections.abc import Sequence

import torch
import transformers

from zerogap_bench.machine import OthersLoad, PeakMemory
from zerogap_bench.prepare import Prepared
from zerogap_bench.records import PeerMeasured
from zerogap_bench.shapes import RunShape


class TransformersRollout:
    """Left-pads all prompts into one batch and generates answers of the same length."""

    def __init__(self, *, prepared: Prepared, shapes: Sequence[RunShape]) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._prompt_ids = prepared.prompt_ids
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            prepared.folder, dtype=torch.float32
        ).eval()
        # The defaults would stop at end tokens and sample only from the 50 most likely tokens.
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0, use_cache=True
        )
        self._generate(min(shapes, key=lambda s: s.num_sequences), 2, with_log_probs=True)

    def run(self, *, shape: RunShape, seed: int, with_log_probs: bool) -> PeerMeasured:
        """One measured run.

        Args:
            shape: what to generate.
            seed: of torch's generator.
            with_log_probs: keep the scores of all steps, and compute the log-prob of each drawn token from them.
        """
        torch.manual_seed(seed)
        with OthersLoad() as others:
            num_new = self._generate(shape, shape.max_new_tokens, with_log_probs=with_log_probs)
        assert num_new == shape.num_output_tokens, f"generate gave {num_new} tokens, not {shape}"
        return PeerMeasured(
            seconds=others.wall_s, others_load=others.share, peak_rss_gb=PeakMemory().gb
        )

    @torch.no_grad()
    def _generate(self, shape: RunShape, max_new_tokens: int, *, with_log_probs: bool) -> int:
        """Number of new tokens."""
        ids_BP, mask_BP = _left_padded(self._prompt_ids[: shape.num_prompts])
        out = self._model.generate(
            input_ids=ids_BP,
            attention_mask=mask_BP,
            num_return_sequences=shape.group_size,
            max_new_tokens=max_new_tokens,
            return_dict_in_generate=True,
            output_scores=with_log_probs,
        )
        for step, scores_BV in enumerate(out.scores or ()):
            drawn_B1 = out.sequences[:, ids_BP.shape[1] + step, None]
            torch.log_softmax(scores_BV, dim=-1).gather(1, drawn_B1)
        return out.sequences[:, ids_BP.shape[1] :].numel()


def _left_padded(prompts: tuple[tuple[int, ...], ...]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    padding = [longest - len(ids) for ids in prompts]
    ids_BP = torch.tensor(
        [[0] * pad + list(ids) for pad, ids in zip(padding, prompts, strict=True)]
    )
    mask_BP = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    return ids_BP, mask_BP
