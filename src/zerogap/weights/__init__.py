"""Weights on their way from trainer to engine: digests, the last versions, publishing.

In: a trainer's parameters and a version number. Out: an engine that holds the same bits or refuses to generate, and the
digest of each version's weights. Nothing here trains or generates.
"""

from zerogap.weights.copying import copy_weights
from zerogap.weights.digest import (
    NamedWeights,
    Place,
    Rounding,
    WeightDigest,
    digest_tensor,
    digest_weights,
    named_weights,
    places_of,
    trained_weights,
    unrounded,
    weight_fingerprint,
)
from zerogap.weights.history import WeightHistory
from zerogap.weights.publish import Published, Publisher, WeightSink
from zerogap.weights.sources import CopiedWeights, SharedWeights, WeightSource
from zerogap.weights.versions import WeightVersions

__all__ = [
    "CopiedWeights",
    "NamedWeights",
    "Place",
    "Published",
    "Publisher",
    "Rounding",
    "SharedWeights",
    "WeightDigest",
    "WeightHistory",
    "WeightSink",
    "WeightSource",
    "WeightVersions",
    "copy_weights",
    "digest_tensor",
    "digest_weights",
    "named_weights",
    "places_of",
    "trained_weights",
    "unrounded",
    "weight_fingerprint",
]
