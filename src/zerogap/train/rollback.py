"""The state before the last step's updates, so that they can be undone."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Rollback:
    """Keeps a copy of tensors; its memory is allocated once."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self.is_held = False
        """Whether there is something to go back to."""

    @torch.no_grad()
    def keep(self, state: Mapping[str, Tensor]) -> None:
        """Copy the state; it replaces the one before."""
        for name, tensor in state.items():
            if name in self._kept:
                self._kept[name].copy_(tensor)
            else:
                self._kept[name] = tensor.detach().clone()
        self.is_held = True

    def take(self) -> Mapping[str, Tensor]:
        """The kept state, once: what is undone cannot be undone again."""
        assert self.is_held, "nothing to go back to"
        self.is_held = False
        return self._kept

    def state_dict(self) -> dict[str, Tensor]:
        """The kept state; {} if there is none. Views: write or copy them before the next step."""
        return dict(self._kept) if self.is_held else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a ``state_dict``."""
        self.is_held = False
        if state:
            self.keep(state)
