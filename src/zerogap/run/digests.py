"""Digests of files: XXH3 with 128 bits, as 32 hexadecimal digits. They guard against damage and mistakes, not an adversary."""

import json
from pathlib import Path

import xxhash

_BLOCK = 2**24
"""Bytes that are read at once."""


def digest_of_file(path: Path) -> str:
    """Of a file's bytes."""
    hashed = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            hashed.update(block)
    return hashed.hexdigest()


def digests_of_files(folder: Path) -> dict[str, str]:
    """Of each file in a folder and in those below, by path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): digest_of_file(path) for path in files}


def digest_of_json(content: object) -> str:
    """Of a JSON value, whatever the order of its keys."""
    return xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True).encode())
