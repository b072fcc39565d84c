"""A trainer that goes on where another one was saved."""

from pathlib import Path

import torch

from zerogap.train import NativeTrainer


def go_on_from(first: NativeTrainer, second: NativeTrainer, folder: Path) -> None:
    """Save the first one's state and load it, with its weights, into the second one."""
    first.save(folder)
    with torch.no_grad():
        for p, q in zip(second.model.parameters(), first.model.parameters(), strict=True):
            p.copy_(q)
    second.load(folder)
