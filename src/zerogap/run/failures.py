"""Says why completions got no reward, and ends a run that has just started and gets none at all."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerogap.errors import RewardFailed
from zerogap.types import Outcome, Sample

_MAX_KINDS = 20
"""Kinds of reasons told in a run: a function that puts what it read into its errors must not flood the console."""
_MAX_LISTED = 3
"""Reasons in the error that ends a run."""
_MAX_TEXT = 400
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|[-+\d.]*\d")
"""Parts of a reason that differ between completions with the same problem: quotations and numbers."""
_RAISED = re.compile(r"((?:[\w.]+: )*?\w+): .*(\([^()]*, line \d+\))", re.DOTALL)
"""An exception with the line that raised it, which says enough: its text may be all of a completion."""


@dataclass(frozen=True)
class _Reason:
    """One kind of reason."""

    kind: str
    text: str
    """Of the first completion that had it, on one line."""
    count: int


class FailedRewards:
    """Tells each kind of reason once. Mutated by ``take``."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """``say`` prints a line."""
        self._say = say
        self._told: set[str] = set()

    def take(self, where: str, samples: Sequence[Sample], *, must_have_one: bool) -> None:
        """Tell why samples of a step or an evaluation failed.

        Args:
            where: its name, such as ``step 1``.
            samples: all of them.
            must_have_one: whether at least one of them must have a reward: nothing has shown yet that the reward works.

        Raises:
            RewardFailed: all have failed, and at least one must not.
        """
        failed = [s for s in samples if not s.outcome.is_valid]
        reasons = _reasons(failed)
        if must_have_one and samples and len(failed) == len(samples):
            raise RewardFailed(_nothing_works(where, len(samples), reasons))
        for reason in reasons:
            if reason.kind in self._told or len(self._told) > _MAX_KINDS:
                continue
            self._told.add(reason.kind)
            if len(self._told) > _MAX_KINDS:
                self._say(f"warning: {where}: more kinds of failed rewards are not told here; samples.jsonl of each step has all of them as outcome_detail")  # fmt: skip
                return
            self._say(
                f"warning: {where}: no reward for {reason.count} of {len(samples)} completions: {reason.text}"
            )


def _reasons(failed: Sequence[Sample]) -> list[_Reason]:
    """Kinds of reasons, the most frequent first."""
    texts: dict[str, list[str]] = {}
    for sample in failed:
        is_verifier = sample.outcome is Outcome.VERIFIER_FAILED
        text = sample.outcome_detail if is_verifier else f"{sample.outcome}: {sample.outcome_detail}"  # fmt: skip
        raised = _RAISED.fullmatch(text)
        kind = _VARIABLE.sub("#", text) if raised is None else f"{raised[1]} {raised[2]}"
        texts.setdefault(kind, []).append(text)
    found = [_Reason(kind, _on_one_line(some[0]), len(some)) for kind, some in texts.items()]
    return sorted(found, key=lambda reason: -reason.count)


def _nothing_works(where: str, num_samples: int, reasons: Sequence[_Reason]) -> str:
    listed = "".join(f"\n  {reason.count} times: {reason.text}" for reason in reasons[:_MAX_LISTED])
    more = f"\n  and {len(reasons) - _MAX_LISTED} more kinds" if len(reasons) > _MAX_LISTED else ""
    return f"{where}: none of {num_samples} completions got a reward, so there is nothing to train on or to measure:{listed}{more}\nCorrect the reward or the data, then run the same command again"


def _on_one_line(text: str) -> str:
    """Without line ends and control characters, which could come from a completion, and cut to a few lines' length."""
    line = "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]} ..."
