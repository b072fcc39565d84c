"""A digest of all weights: what a version number stands for."""

from concurrent.futures import ThreadPoolExecutor

import torch
import xxhash

from zerogap.models import CausalLM


def weight_fingerprint(model: CausalLM) -> str:
    """XXH3 (128 bits) over every parameter's name, shape and bytes, in order of name; 32 hexadecimal digits.

    Guards against mistakes, not against an adversary. A tied head counts once, as it is stored once.
    """
    named = sorted(model.named_parameters(remove_duplicate=True))
    # xxhash lets other threads run while it digests a large buffer.
    with ThreadPoolExecutor(max_workers=torch.get_num_threads()) as pool:
        digests = list(pool.map(_digest, (parameter for _, parameter in named)))
    whole = xxhash.xxh3_128()
    for (name, parameter), digest in zip(named, digests, strict=True):
        whole.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode() + digest)
    return whole.hexdigest()


def _digest(parameter: torch.Tensor) -> bytes:
    # Bytes as they are: bf16 has no numpy type, and -0.0 must differ from 0.0.
    content = parameter.detach().contiguous().view(torch.uint8).numpy()
    return xxhash.xxh3_128_digest(content.data)
