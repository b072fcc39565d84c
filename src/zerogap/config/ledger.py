"""[ledger]: how much of a step's samples is re-scored to attribute the gap."""

from pydantic import Field

from zerogap.config.section import Section


class LedgerConfig(Section):
    """Audited records are chosen anew each step, whatever the loss, the corrections or the old log-probs are."""

    share: float = Field(0.01, gt=0, le=1)
    """Share of the sampled tokens that is audited; 1 audits all."""
    min_records: int = Field(4, ge=1)
    """Audited records at least, however few tokens they have."""
