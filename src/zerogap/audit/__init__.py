"""A recorded step, looked at again: its weights from the run's folder alone, its ledger over every token, its worst tokens.

In: a run's folder and a step. Out: an ``Audit``, and a page in which each token is coloured by its gap. Nothing in the folder
changes, and the engine is not needed: records hold what it said.
"""

from zerogap.audit.audited import Audit, AuditedToken, worst_tokens
from zerogap.audit.lines import describe_audit
from zerogap.audit.page import write_audit_page
from zerogap.audit.recorded import RecordedRun
from zerogap.audit.rewind import Rewound, rewind
from zerogap.audit.step import audit_step

__all__ = [
    "Audit",
    "AuditedToken",
    "RecordedRun",
    "Rewound",
    "audit_step",
    "describe_audit",
    "rewind",
    "worst_tokens",
    "write_audit_page",
]
