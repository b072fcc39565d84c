"""[teacher]: who scores the policy's own completions, and what it reads."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.algorithms.refresh import Refresh
from zerogap.section import Section

_QUESTION, _HINT = "{question}", "{hint}"


class HintConfig(Section):
    """[teacher.hint]: what the teacher reads beside the question, and the policy does not (https://arxiv.org/abs/2601.20802)."""

    kind: Literal["answer", "success"]
    """answer: the prompt's reference answer (https://arxiv.org/abs/2601.19897); success: the first other completion of its group
    with a reward of at least min_reward. A completion without a hint has no term of the teacher."""
    template: str = "{question}\n\nThis is a good answer:\n\n{hint}\n\nNow answer the question in your own words."
    """User message of the teacher's prompt: ``{question}`` is the policy's user message, ``{hint}`` the hint."""
    min_reward: float = 1.0
    """Smallest reward of a success."""

    def problems(self) -> Iterator[str]:
        """A template that lacks one of its parts."""
        for slot in (_QUESTION, _HINT):
            if self.template.count(slot) != 1:
                yield f"template = {self.template!r}: {slot} must appear in it exactly once; write it where it goes"

    def render(self, question: str, hint: str) -> str:
        """The teacher's user message. Braces in question and hint stay."""
        before, after = self.template.split(_QUESTION)
        return before.replace(_HINT, hint) + question + after.replace(_HINT, hint)


class TeacherConfig(Section):
    """[teacher]: distil a teacher on the policy's own completions (https://arxiv.org/abs/2306.13649)."""

    path: str | None = None
    """The teacher's weights, given as in model.path; it must have the policy's tokenizer. none: the policy itself, with a hint."""
    hint: HintConfig | None = None
    """What the teacher reads beside the question; none: it reads what the policy reads."""
    refresh: Refresh | None = None
    """Without a path: the teacher is a copy of the policy, which follows it like this; none: the policy as it is."""
    weight: float = Field(1.0, gt=0)
    """Weight beside the rewards' advantages; advantage.kind = "none" trains on the teacher alone."""
    estimator: Literal["sampled", "top_k"] = "sampled"
    """sampled: the negative reverse KL at the sampled token is added to its advantage; top_k: a differentiable KL over the
    teacher's top_k ids and one bucket with the remaining mass is added to the loss."""
    top_k: int = Field(32, ge=1)
    """Number of ids per token, for estimator = "top_k"."""
    direction: Literal["reverse", "forward"] = "reverse"
    """For estimator = "top_k": KL(policy || teacher), or KL(teacher || policy)."""

    @property
    def is_top_k(self) -> bool:
        """Whether the KL is over several ids a token."""
        return self.estimator == "top_k"

    @property
    def is_policy(self) -> bool:
        """Whether the policy's own weights are the teacher's."""
        return self.path is None and self.refresh is None

    def problems(self) -> Iterator[str]:
        """A teacher that knows nothing more than the policy; a given teacher that follows it."""
        if self.path is None and self.hint is None:
            yield "path: without weights of its own and without a hint the teacher is the policy and has nothing to teach; set path, or add the table hint"
        if self.path is not None and self.refresh is not None:
            yield f"path = {self.path!r}, refresh: a teacher with weights of its own does not follow the policy; remove one of the two"
