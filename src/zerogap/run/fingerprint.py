"""A digest of all weights: what a version number stands for."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch

from zerogap.models import CausalLM


def weight_fingerprint(model: CausalLM) -> str:
    """SHA-256 over every parameter's name, shape and bytes, in order of name; 16 hexadecimal digits.

    Equal exactly when all weights are. A tied head counts once, as it is stored once.
    """
    named = sorted(model.named_parameters(remove_duplicate=True))
    # hashlib lets other threads run while it digests a large buffer.
    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        digests = list(pool.map(_digest, (parameter for _, parameter in named)))
    whole = hashlib.sha256()
    for (name, parameter), digest in zip(named, digests, strict=True):
        whole.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode() + digest)
    return whole.hexdigest()[:16]


def _digest(parameter: torch.Tensor) -> bytes:
    # Bytes as they are: bf16 has no numpy type, and -0.0 must differ from 0.0.
    content = parameter.detach().contiguous().view(torch.uint8).numpy()
    return hashlib.sha256(content.data).digest()
