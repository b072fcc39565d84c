"""A model that nobody trains and that may follow the policy: a reference or a teacher."""

from collections.abc import Mapping

import torch
from torch import Tensor

from zerogap.algorithms import Refresh
from zerogap.errors import CheckpointError
from zerogap.models import CausalLM
from zerogap.train.optimizer import check_state


class RefreshedModel:
    """Owns the model; without a ``Refresh`` it stays as it is and has no state.

    A bf16 model keeps its average in fp32: with a weight of 0.05 most changes would be rounded away. Its parameters are the
    rounded average.
    """

    def __init__(self, model: CausalLM, refresh: Refresh | None, *, name: str) -> None:
        """A model that has not moved.

        Args:
            model: its weights loaded. Of the policy's architecture, if there is a refresh.
            refresh: when and how far it moves; None: never.
            name: in errors.
        """
        self.model, self._refresh, self._name = model, refresh, name
        self._averages: dict[str, Tensor] = {}
        if refresh is not None:
            keeps_copy = model.is_bf16 and refresh.weight < 1
            self._averages = {
                n: p.detach().clone() if keeps_copy else p.detach()
                for n, p in model.named_parameters()
            }

    @torch.no_grad()
    def follow(self, policy: CausalLM, num_steps: int) -> None:
        """Move towards the policy if it is time after ``num_steps`` steps."""
        refresh = self._refresh
        if refresh is None or num_steps % refresh.every:
            return
        for name, new in policy.named_parameters():
            if refresh.weight == 1:
                self._averages[name].copy_(new)
            else:
                self._averages[name].lerp_(new, refresh.weight)
        self._write()

    def state_dict(self) -> dict[str, Tensor]:
        """The averages; {} for a model that never moves. Views: write or copy them before the next step."""
        return dict(self._averages)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a ``state_dict``.

        Raises:
            CheckpointError: it belongs to another model, or to a run with another ``refresh``.
        """
        if bool(state) != bool(self._averages):
            has, does = ("no", "moves") if self._averages else ("a", "does not move")
            msg = f"the trainer state has {has} moved {self._name}, and this recipe {does} the {self._name}: another recipe wrote it; resume with the refresh table of that run"
            raise CheckpointError(msg)
        check_state(self._averages, state, self._name)
        for name, average in self._averages.items():
            average.copy_(state[name])
        self._write()

    def _write(self) -> None:
        """Round the averages into the model; where they are its parameters, they stay what they are."""
        parameters = dict(self.model.named_parameters())
        for name, average in self._averages.items():
            parameters[name].copy_(average)
        self.model.round_weights_()
