"""Promise 5: engine and trainer agree on a digest of all weights, and every weight changes the digest."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from zerogap.certify.finding import Finding

Weights = Mapping[str, Tensor]


def check_fingerprints(
    trained: Weights, served: Callable[[], str], digest: Callable[[Weights], str]
) -> Finding:
    """Compare both sides, then flip one bit of each tensor in turn.

    Args:
        trained: the trainer's tensors by name; one bit of each is flipped and restored.
        served: computes the engine's digest of the weights it reads.
        digest: computes the digest of named tensors.
    """
    whole = digest(trained)
    if (found := served()) != whole:
        return Finding(is_kept=False, figure=f"the engine reads other weights ({found}) than the trainer holds ({whole})", cure="publish again; if they still differ, report it")  # fmt: skip
    unseen = [name for name, tensor in trained.items() if not _is_seen(name, tensor, digest)]
    if digest(trained) != whole:
        unseen.append("(a restored weight)")
    if unseen:
        listed = ", ".join(unseen[:3])
        return Finding(is_kept=False, figure=f"{len(unseen)} of {len(trained)} tensors can change without changing the digest ({listed})", cure="this is a bug: please report it")  # fmt: skip
    return Finding(is_kept=True, figure=f"both sides {whole[:12]}; flipping one bit in any of {len(trained)} tensors changes it")  # fmt: skip


def _is_seen(name: str, tensor: Tensor, digest: Callable[[Weights], str]) -> bool:
    """Whether flipping the last bit of the last element changes the digest of that tensor."""
    before = digest({name: tensor})
    _flip_last_bit(tensor)
    try:
        return digest({name: tensor}) != before
    finally:
        _flip_last_bit(tensor)


@torch.no_grad()
def _flip_last_bit(tensor: Tensor) -> None:
    bits = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
    tensor.detach().view(-1)[-1:].view(bits).bitwise_xor_(1)
