"""A token and its neighbours as text for a terminal."""

from collections.abc import Callable, Iterator

from zerogap.audit.audited import AuditedToken
from zerogap.audit.table import nats
from zerogap.report.tokens import role_of, token_text

_BEFORE, _AFTER = 12, 6
"""Tokens shown on each side."""


def describe_token(token: AuditedToken, decode_token: Callable[[int], str]) -> Iterator[str]:
    """Lines: place, surrounding text, six log-probs, and the difference from each source."""
    sample, at = token.audited.sample, token.position
    kept = float(sample.kept_log_mass[at])
    yield (
        f"{sample.rollout_id}, position {at}: gap {nats(token.gap)}; {role_of(sample, at)}, id {sample.token_ids[at]}, "
        f"version {sample.weight_version[at]}, log of kept mass {nats(kept)}"
    )
    yield "  " + _around(token, decode_token)
    yield "  " + "  ".join(f"a{stage} {value:.6f}" for stage, value in enumerate(token.stages))
    moved = {name: value for name, value in token.sources.items() if value != 0}
    yield "  " + ", ".join(f"{name} {value:+.3g}" for name, value in moved.items())


def _around(token: AuditedToken, decode_token: Callable[[int], str]) -> str:
    ids, at = token.audited.sample.token_ids, token.position
    first, end = max(0, at - _BEFORE), min(len(ids), at + _AFTER + 1)

    def text(start: int, stop: int) -> str:
        shown = "".join(token_text(int(i), decode_token) for i in ids[start:stop])
        return shown.replace("\n", "↵").replace("\t", "⇥")

    before, after = ("…" if first else ""), ("…" if end < len(ids) else "")
    return f"{before}{text(first, at)}⟦{text(at, at + 1)}⟧{text(at + 1, end)}{after}"
