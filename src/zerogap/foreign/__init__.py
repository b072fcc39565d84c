"""Engines of other projects, behind the same ``rollout.Generator`` Protocol and measured by the same ledger.

Comes in: requests and weights. Goes out: ids and the log-probs that the other engine computed itself. It refuses what
it cannot do; what it computes differently shows up as an open source of the gap.
"""

from zerogap.foreign.transformers_generator import TransformersGenerator
from zerogap.foreign.transformers_scores import transformers_log_probs

__all__ = ["TransformersGenerator", "transformers_log_probs"]
