"""Encodes reference answers as the ids that the policy would have to sample."""

from collections.abc import Sequence

from zerogap.data.tokenizer import Tokenizer
from zerogap.errors import DataError

_TURN = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"})


class AnswerEncoder:
    """Encodes an answer as the continuation of its prompt, with the end token.

    The prompt's ids stay the same, so training on answers uses the same prompts as sampling and evaluation.
    """

    def __init__(self, tokenizer: Tokenizer, *, chat: bool, eos_token_ids: Sequence[int]) -> None:
        """Find the end token of answers.

        Args:
            tokenizer: the policy's tokenizer.
            chat: whether prompts use the chat template. Answers then end with the end token of the template's
                assistant turn, if it has one; otherwise with the tokenizer's end token.
            eos_token_ids: ids at which the engine stops.

        Raises:
            DataError: there is no end token, or the engine would not stop at it.
        """
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self.end_token_id = self._find_end(chat=chat)
        """The last id of every answer."""

    def __call__(self, prompt_ids: Sequence[int], answer: str) -> list[int]:
        """Ids of the answer and the end token.

        Args:
            prompt_ids: ids of the prompt.
            answer: the text as the reward sees it. White space between prompt and answer must be part of one of them.

        Raises:
            DataError: the answer contains a begin or end token, or its ids do not decode to its text after this prompt.
        """
        ids = self._continuation(list(prompt_ids), answer)
        forbidden = self._eos_token_ids | {self._tokenizer.bos_token_id}
        if special := [i for i in ids if i in forbidden]:
            msg = f"the answer {answer[:80]!r} contains the special token {self._tokenizer.decode(special[:1], False)!r}, which would cut it off; remove it from the text (the end token is added automatically)"
            raise DataError(msg)
        return [*ids, self.end_token_id]

    def _continuation(self, prompt_ids: list[int], answer: str) -> list[int]:
        """Ids of the answer after the prompt: encoded with the prompt if that keeps the prompt's ids, else alone."""
        before = self._tokenizer.decode(prompt_ids, False)
        joint = self._tokenizer.encode(before + answer)
        if joint[: len(prompt_ids)] == prompt_ids:
            return joint[len(prompt_ids) :]
        ids = self._tokenizer.encode(answer)
        if self._tokenizer.decode([*prompt_ids, *ids], False) != before + answer:
            msg = f"the answer {answer[:80]!r} cannot follow its prompt: its ids decode to {self._tokenizer.decode(ids, False)[:80]!r}; begin the answer with a space, or end the prompt without one"
            raise DataError(msg)
        return ids

    def _find_end(self, *, chat: bool) -> int:
        found = [self._tokenizer.eos_token_id]
        if chat:
            turn = self._tokenizer.apply_chat_template(_TURN, add_generation_prompt=False)
            found += [i for i in turn if i in self._eos_token_ids]
        end = found[-1]
        if end is None or end not in self._eos_token_ids:
            msg = f"answers end with token {end}, but the engine stops only at {sorted(self._eos_token_ids)}, so a policy trained on answers would never stop; put a generation_config.json with that eos_token_id into the model's folder, or use a tokenizer with one of these end tokens"
            raise DataError(msg)
        return end
