"""The ledger of a run: a share of each step's samples is scored again up a ladder, and the gap gets its five sources.

Comes in: the samples of a step before they train, and the version of the weights that will. Goes out: a
``LedgerEntry``, which is a line of ``ledger.jsonl`` and the ``gap/*`` metrics. What it compares with the engine are the
trainer's own log-probs, from a forward pass of its own or from that of the first update, so it measures whatever the loss,
the corrections or the old log-probs are, and it changes nothing.
"""

from zerogap.ledger.climb import AuditedRecord, climb
from zerogap.ledger.entry import LedgerEntry, WorstToken
from zerogap.ledger.ledger import Ledger, StartedAudit
from zerogap.ledger.scorer import ForwardScorer, Scorer
from zerogap.ledger.trained import trained_gap

__all__ = [
    "AuditedRecord",
    "ForwardScorer",
    "Ledger",
    "LedgerEntry",
    "Scorer",
    "StartedAudit",
    "WorstToken",
    "climb",
    "trained_gap",
]
