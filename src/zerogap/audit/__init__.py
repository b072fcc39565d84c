"""The audit of a recorded step: recompute its weights from the run's folder and attribute the gap of every trained token.

In: a run's folder and a step. Out: an ``Audit``, and a page that colours each token by its gap. Nothing in the folder
changes. The engine is not needed: the recorded samples hold its log-probs.
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
