"""Tensors of a checkpoint: checked by name and shape before copying, by value after it, and read in pieces."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from zerogap.errors import ModelError

Shape = tuple[int, ...]


_PIECE_ELEMENTS = 1 << 20
"""4 MB in fp32."""


def check_tensors(
    views: Mapping[str, torch.Tensor], found: Mapping[str, Shape], *, where: str
) -> None:
    """Raise ModelError, naming every missing, surplus and misshapen tensor, unless both agree.

    Args:
        views: the model's tensors by Hugging Face name.
        found: shapes of the checkpoint's; ``rotary_emb.inv_freq`` of old checkpoints is ignored, because it follows
            from the config.
        where: the checkpoint, for the message.
    """
    expected = {name: tuple(view.shape) for name, view in views.items()}
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


def check_finite(views: Mapping[str, torch.Tensor], *, where: str) -> None:
    """Raise ModelError, naming every tensor with a NaN or infinity."""
    # The sum is one pass without a temporary; elements are checked only if it is not finite.
    broken = [n for n, x in views.items() if not x.sum().isfinite() and not x.isfinite().all()]
    if broken:
        msg = (
            f"{where} has NaN or infinity in {broken}, so the model would give NaN for every token; "
            "use an earlier checkpoint"
        )
        raise ModelError(msg)


def row_pieces(tensor: torch.Tensor, *, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Half-open ranges that cover the rows of ``tensor``, each of about a million elements.

    Args:
        tensor: [rows, ...]; may be a vector.
        multiple: the length of every range but the last is a multiple of this.
    """
    row_elements = max(1, tensor[0].numel()) if len(tensor) else 1
    step = multiple * max(1, _PIECE_ELEMENTS // (row_elements * multiple))
    for begin in range(0, len(tensor), step):
        yield begin, min(begin + step, len(tensor))


def _told(what: str, names: Sequence[str]) -> list[str]:
    return [f"{len(names)} {what}: {', '.join(names)}"] if names else []
