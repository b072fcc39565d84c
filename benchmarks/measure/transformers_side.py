"""transformers' side: batched ``generate`` with its KV cache, on the same weights and prompt ids. Lives in a worker."""

import torch
import transformers

from measure.machine import OthersLoad, peak_rss_gb
from measure.prepare import Prepared
from measure.records import PeerMeasured
from measure.shapes import RunShape


class TransformersRollout:
    """All prompts left-padded in one batch, ``num_return_sequences`` answers each, exactly the same lengths."""

    def __init__(self, *, prepared: Prepared, shape: RunShape) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self._shape = shape
        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            prepared.folder, dtype=torch.float32
        ).eval()
        # Its own defaults would stop at end tokens and cut to the 50 likeliest tokens.
        self._model.generation_config = transformers.GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0, use_cache=True
        )
        self._ids_BP, self._mask_BP = _left_padded(prepared.prompt_ids[: shape.num_prompts])
        self._generate(with_log_probs=True, max_new_tokens=2)

    def run(self, *, seed: int, with_log_probs: bool) -> PeerMeasured:
        """One measured run.

        Args:
            seed: of torch's generator.
            with_log_probs: keep the scores of all steps and take each drawn token's log-prob from them.
        """
        torch.manual_seed(seed)
        with OthersLoad() as others:
            ids = self._generate(with_log_probs=with_log_probs, max_new_tokens=self._shape.max_new_tokens)  # fmt: skip
        expected = (self._shape.num_sequences, self._ids_BP.shape[1] + self._shape.max_new_tokens)
        assert tuple(ids.shape) == expected, f"generate gave {tuple(ids.shape)}, not {expected}"
        return PeerMeasured(
            seconds=others.wall_s, others_load=others.share, peak_rss_gb=peak_rss_gb()
        )

    @torch.no_grad()
    def _generate(self, *, with_log_probs: bool, max_new_tokens: int) -> torch.Tensor:
        out = self._model.generate(
            input_ids=self._ids_BP,
            attention_mask=self._mask_BP,
            num_return_sequences=self._shape.group_size,
            max_new_tokens=max_new_tokens,
            return_dict_in_generate=True,
            output_scores=with_log_probs,
        )
        for step, scores_BV in enumerate(out.scores or ()):
            drawn_B1 = out.sequences[:, self._ids_BP.shape[1] + step, None]
            torch.log_softmax(scores_BV, dim=-1).gather(1, drawn_B1)
        return out.sequences


def _left_padded(prompts: tuple[tuple[int, ...], ...]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, prompts))
    padding = [longest - len(ids) for ids in prompts]
    ids_BP = torch.tensor(
        [[0] * pad + list(ids) for pad, ids in zip(padding, prompts, strict=True)]
    )
    mask_BP = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    return ids_BP, mask_BP
