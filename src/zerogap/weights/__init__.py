"""Weights on their way from trainer to engine: digests, the last versions, publishing.

Comes in: a trainer's parameters and a version number. Goes out: an engine that holds the same bits, or refuses to
generate; and for every version the digest that says which weights it stands for. Nothing here trains or generates.
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
