"""Seeds of sampling noise: no two requests of a run share one."""

import struct
from hashlib import blake2b

_SEED_BITS = 53
"""Seeds are written to JSON, whose readers may store numbers as doubles."""


def noise_seed(
    run_seed: int,
    group_id: str,
    item_id: str,
    *,
    sibling: int | None = None,
    turn: int = 0,
    attempt: int = 0,
) -> int:
    """The ``sampling_seed`` of a request; the same on any machine.

    Within a request the engine keys each draw by (seed, index of the sibling, place in the completion), so one seed
    serves a whole group's first turn. Every other request needs a seed of its own.

    Args:
        run_seed: the run's.
        group_id: unique in the run; it names purpose, step and place.
        item_id: of the prompt.
        sibling: index of the sibling that makes the request; None if it is the whole group's.
        turn: of the rollout, from 0.
        attempt: number of earlier attempts at the same request.
    """
    name = f"{run_seed}/{group_id}/{item_id}".encode()
    who = struct.pack("<QII", 0 if sibling is None else sibling + 1, turn, attempt)
    digest = blake2b(name, digest_size=8, salt=who).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)
