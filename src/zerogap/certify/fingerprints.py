"""Promise 5: engine and trainer agree on a digest of all weights, and the digest sees every one of them."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from zerogap.certify.finding import Finding

Weights = Mapping[str, Tensor]


def check_fingerprints(
    trained: Weights, served: Callable[[], str], digest: Callable[[Weights], str]
) -> Finding:
    """Compare both sides, then change one bit of one tensor at a time.

    Args:
        trained: the trainer's tensors by name; one bit of each is changed and put back.
        served: the engine's digest of what it reads.
        digest: of named tensors.
    """
    whole = digest(trained)
    if (found := served()) != whole:
        return Finding(is_kept=False, figure=f"the engine reads other weights ({found}) than the trainer holds ({whole})", cure="publish again; if they still differ, report it")  # fmt: skip
    unseen = [name for name, tensor in trained.items() if not _is_seen(name, tensor, digest)]
    if digest(trained) != whole:
        unseen.append("(a weight that was put back)")
    if unseen:
        listed = ", ".join(unseen[:3])
        return Finding(is_kept=False, figure=f"one bit of {len(unseen)} of {len(trained)} tensors can change unseen ({listed})", cure="a digest that skips tensors proves nothing: please report it")  # fmt: skip
    return Finding(is_kept=True, figure=f"both sides {whole[:12]}; one bit of any of {len(trained)} tensors changes it")  # fmt: skip


def _is_seen(name: str, tensor: Tensor, digest: Callable[[Weights], str]) -> bool:
    """Whether the last bit of the last element shows in the digest of that tensor."""
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
