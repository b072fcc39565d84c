"""Engines that are not ours, behind the same ``rollout.Generator`` Protocol: measured by the same ledger.

Comes in: requests and weights. Goes out: ids and the log-probs that the foreign program computed itself. What such
an engine cannot do it refuses; what it computes differently shows up as an open source of the gap.
"""

from zerogap.foreign.transformers_generator import TransformersGenerator
from zerogap.foreign.transformers_scores import transformers_log_probs

__all__ = ["TransformersGenerator", "transformers_log_probs"]
