"""The ledger of a run: it scores a share of each step's samples again and attributes the gap to five sources.

Comes in: the samples of a step before they train, and the version of the weights that will train. Goes out: a
``LedgerEntry``, which is a line of ``ledger.jsonl`` and the ``gap/*`` metrics. The ledger compares the engine with the
trainer's own log-probs, from an extra forward pass or from that of the first update. It therefore works with every loss,
correction and choice of old log-probs, and it changes nothing.
"""

from zerogap.ledger.attribution import AuditedSample, attribute_samples
from zerogap.ledger.entry import LedgerEntry, WorstToken
from zerogap.ledger.ledger import Ledger, StartedAudit
from zerogap.ledger.recheck import Recheck
from zerogap.ledger.scorer import ForwardScorer, Scorer
from zerogap.ledger.trained import trained_gap

__all__ = [
    "AuditedSample",
    "ForwardScorer",
    "Ledger",
    "LedgerEntry",
    "Recheck",
    "Scorer",
    "StartedAudit",
    "WorstToken",
    "attribute_samples",
    "trained_gap",
]
