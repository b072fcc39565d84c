"""Checks the tensors of a checkpoint: names and shapes before copying, finite values after it."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from zerogap.errors import ModelError

Shape = tuple[int, ...]


def check_tensors(expected: Mapping[str, Shape], found: Mapping[str, Shape], *, where: str) -> None:
    """Raise ModelError, naming every missing, surplus and misshapen tensor, unless both agree.

    Args:
        expected: shape of each tensor by Hugging Face name.
        found: the same for the checkpoint; ``rotary_emb.inv_freq`` of old checkpoints is ignored, because it
            follows from the config.
        where: the checkpoint, for the message.
    """
    surplus = [n for n in found if n not in expected and not n.endswith("rotary_emb.inv_freq")]
    missing = [name for name in expected if name not in found]
    misshapen = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    problems = _told("missing", missing) + _told("surplus", surplus)
    problems += _told("of another shape", misshapen)
    if problems:
        msg = (
            f"{where} does not fit its configuration: {'; '.join(problems)}. "
            "Use weights and config.json of the same model"
        )
        raise ModelError(msg)


def check_finite(tensors: Iterable[tuple[str, torch.Tensor]], *, where: str) -> None:
    """Raise ModelError, naming every tensor with a NaN or infinity."""
    # The sum is one pass without a temporary; elements are checked only if it is not finite.
    broken = [n for n, x in tensors if not x.sum().isfinite() and not x.isfinite().all()]
    if broken:
        msg = (
            f"{where} has NaN or infinity in {broken}, so the model would give NaN for every token; "
            "use an earlier checkpoint"
        )
        raise ModelError(msg)


def _told(what: str, names: Sequence[str]) -> list[str]:
    return [f"{len(names)} {what}: {', '.join(names)}"] if names else []
