"""From a reference answer to the ids that the policy would have had to draw to give it."""

from collections.abc import Sequence

from zerogap.data.tokenizer import Tokenizer
from zerogap.errors import DataError

_TURN = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"})


class AnswerEncoder:
    """Ids of an answer as the continuation of its prompt, with the token that ends it.

    The prompt's ids stay as they are, so that a policy trained on answers sees the prompts that it is sampled and
    evaluated with; nothing that follows encodes the answer's text again.
    """

    def __init__(self, tokenizer: Tokenizer, *, chat: bool, eos_token_ids: Sequence[int]) -> None:
        """Find the token that ends an answer.

        Args:
            tokenizer: the policy's.
            chat: whether prompts are rendered by the chat template: an answer then ends as the template ends an
                assistant's turn, where it writes an end token, and otherwise with the tokenizer's own.
            eos_token_ids: ids at which the engine stops.

        Raises:
            DataError: there is no such token, or the engine would not stop at it.
        """
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self.end_token_id = self._find_end(chat=chat)
        """The last id of every answer."""

    def __call__(self, prompt_ids: Sequence[int], answer: str) -> list[int]:
        """Ids of the answer and the end token.

        Args:
            prompt_ids: what the answer follows.
            answer: text, as the reward would see it; white space that belongs between prompt and answer is part of one of them.

        Raises:
            DataError: the answer spells an end or beginning token, or its ids do not give its text after this prompt.
        """
        ids = self._continuation(list(prompt_ids), answer)
        forbidden = self._eos_token_ids | {self._tokenizer.bos_token_id}
        if special := [i for i in ids if i in forbidden]:
            msg = f"the answer {answer[:80]!r} spells the special token {self._tokenizer.decode(special[:1], False)!r}, after which nothing is read as an answer; remove it from the text (the end token is added)"
            raise DataError(msg)
        return [*ids, self.end_token_id]

    def _continuation(self, prompt_ids: list[int], answer: str) -> list[int]:
        """Where both together have the prompt's ids in front, what follows them: some tokenizers begin a text with a space."""
        before = self._tokenizer.decode(prompt_ids, False)
        joint = self._tokenizer.encode(before + answer)
        if joint[: len(prompt_ids)] == prompt_ids:
            return joint[len(prompt_ids) :]
        ids = self._tokenizer.encode(answer)
        if self._tokenizer.decode([*prompt_ids, *ids], False) != before + answer:
            msg = f"the answer {answer[:80]!r} cannot follow its prompt as it stands: the tokenizer writes {self._tokenizer.decode(ids, False)[:80]!r} there; begin it with a space, or end the prompt without one"
            raise DataError(msg)
        return ids

    def _find_end(self, *, chat: bool) -> int:
        found = [self._tokenizer.eos_token_id]
        if chat:
            turn = self._tokenizer.apply_chat_template(_TURN, add_generation_prompt=False)
            found += [i for i in turn if i in self._eos_token_ids]
        end = found[-1]
        if end is None or end not in self._eos_token_ids:
            msg = f"an answer would end with the token {end}, and the engine stops at {sorted(self._eos_token_ids)}: what is learnt from answers would never end a completion; give the model's folder a generation_config.json with that eos_token_id, or a tokenizer that names one of these"
            raise DataError(msg)
        return end
