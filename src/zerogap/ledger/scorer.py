"""Scores tokens by the trainer's forward pass, with the weights of any version that is still available."""

import copy
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import numpy as np

from zerogap.errors import DataError
from zerogap.kernels import Compute, Gemm
from zerogap.models import CausalLM
from zerogap.train import score_samples
from zerogap.types import Sample
from zerogap.weights import WeightHistory

Routes = Literal["replayed", "free"]
"""replayed: the experts that the sampling pass chose; free: those that the trainer's router chooses."""


class Scorer(Protocol):
    """The trainer's log-probs of recorded tokens."""

    def score(
        self, samples: Sequence[Sample], *, version: int, routes: Routes
    ) -> list[np.ndarray] | None:
        """Log-probs of sampled tokens, at each sample's temperature.

        Args:
            samples: in any order.
            version: of the weights.
            routes: whether to replay ``Sample.routes``, if a sample has them.

        Returns:
            float32 [T] for each sample, NaN at tokens not sampled; None if the version is not available.
        """
        ...


class ForwardScorer:
    """Scores a dense model: current weights in place, older ones in a copy that is made when first needed."""

    def __init__(
        self,
        model: CausalLM,
        *,
        live_version: Callable[[], int],
        micro_batch_tokens: int,
        history: WeightHistory | None = None,
        gemm: Gemm = "exact",
    ) -> None:
        """A scorer that reads the current weights of ``model`` at each call.

        Args:
            model: the trainer's.
            live_version: gives the version of its current weights.
            micro_batch_tokens: at most this many token rows in one forward pass.
            history: older versions of the trainer's weights; without it, tokens of older versions are unattributed.
            gemm: GEMM kernels of the passes.
        """
        self._model, self._live_version = model, live_version
        self._micro_batch_tokens, self._compute = micro_batch_tokens, Compute(gemm=gemm)
        self._history = history
        self._old_model: CausalLM | None = None
        self._old_version: int | None = None

    def score(
        self, samples: Sequence[Sample], *, version: int, routes: Routes
    ) -> list[np.ndarray] | None:
        """As ``Scorer.score``.

        Raises:
            DataError: a sample has routes, and a dense model has no experts.
        """
        for sample in samples:
            if sample.routes is not None:
                msg = f"rollout {sample.rollout_id} has routes, but the model that scores it has no experts; score it with the family that sampled it"
                raise DataError(msg)
        model = self._model_of(version)
        if model is None:
            return None
        return score_samples(
            model,
            samples,
            micro_batch_tokens=self._micro_batch_tokens,
            compute=self._compute,
        )

    def _model_of(self, version: int) -> CausalLM | None:
        if version == self._live_version():
            return self._model
        if self._history is None or version not in self._history.versions:
            return None
        if self._old_model is None:
            self._old_model = copy.deepcopy(self._model)
        if self._old_version != version:
            self._history.load_into(version, self._old_model)
            self._old_version = version
        return self._old_model
