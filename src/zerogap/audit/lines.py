"""An audit as lines for a terminal."""

from collections.abc import Iterator

from zerogap.audit.audited import Audit, worst_tokens
from zerogap.audit.context import describe_token
from zerogap.audit.table import COLUMNS, rows


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
    yield f"the {title}, by the gap that the loss sees, then by the largest raw source"
    for token in worst:
        yield ""
        yield from describe_token(token, audit.decode_token)


def _table(audit: Audit) -> Iterator[str]:
    lines = [("", *COLUMNS), *((row.name, *row.cells) for row in rows(audit))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        aligned = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *aligned])
    share = audit.recorded.get("gap/num_tokens")
    of = "" if share is None else f", on {share:,.0f} tokens"
    yield f"nats per token; open: what the loss sees; recorded: the open mean that the run measured{of}"
    yield ""
