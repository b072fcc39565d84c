"""A recorded step, looked at again: its weights from the run's folder alone, its ledger over every token, its worst tokens.

In: a run's folder and a step. Out: an ``Audit``, and a page in which each token is coloured by its gap. Nothing in the folder
changes, and the engine is not needed: records hold what it said.
"""

from zerogap.run.audit.recorded import RecordedRun
from zerogap.run.audit.rewind import Rewound, rewind, use_threads_of

__all__ = ["RecordedRun", "Rewound", "rewind", "use_threads_of"]
