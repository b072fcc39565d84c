"""An audit as lines for a terminal."""

from collections.abc import Callable, Iterator

from zerogap.audit.audited import Audit, AuditedToken, worst_tokens
from zerogap.audit.table import COLUMNS, nats, recorded_share, rows
from zerogap.report.tokens import role_of, token_text

_BEFORE, _AFTER = 12, 6
"""Tokens shown on each side."""


def describe_audit(audit: Audit, *, num_worst: int) -> Iterator[str]:
    """Weights, number of tokens, the five sources and their total, and the worst tokens in context."""
    entry = audit.entry
    proof = "fingerprint as recorded" if audit.is_proven else "the run recorded no fingerprint of them"  # fmt: skip
    yield f"{audit.run}, step {entry.step}: weights of version {entry.version} from {audit.origin}; {proof}"
    yield (
        f"{entry.num_tokens:,} of {entry.num_audited:,} trained tokens of {len(audit.samples):,} rollouts attributed"
        + (f"; the weights that sampled the other {entry.num_unattributed:,} are not available" if entry.num_unattributed else "")
    )  # fmt: skip
    yield ""
    yield from _table(audit)
    if num_worst == 0:
        return
    worst = worst_tokens(audit.samples, num_worst)
    if not worst:
        yield "no token has a gap: its six log-probs are always equal"
        return
    title = "worst token" if len(worst) == 1 else f"{len(worst)} worst tokens"
    yield f"the {title}, by the whole open gap, then by the largest raw source"
    for token in worst:
        yield ""
        yield from _describe_token(token, audit.decode_token)


def _table(audit: Audit) -> Iterator[str]:
    lines = [("", *COLUMNS), *((row.name, *row.cells) for row in rows(audit))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *aligned])
    yield f"nats per token, over {audit.entry.num_tokens:,} tokens of {len(audit.samples):,} samples; open: what replays leave"
    yield "ratios and weights of the loss contain numbers, routing and staleness, not sampling"
    yield f"recorded: the open mean that the run measured{recorded_share(audit)}"
    if (again := audit.entry.recheck) is not None:
        yield f"scored by a second path: {again.num_tokens:,} tokens of {again.rollout_id}, largest difference {nats(again.difference)}"
    yield ""


def _describe_token(token: AuditedToken, decode_token: Callable[[int], str]) -> Iterator[str]:
    """Place, surrounding text, six log-probs, and the difference from each source."""
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
