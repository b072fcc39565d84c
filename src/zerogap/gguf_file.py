"""Reads a GGUF file (llama.cpp's format) piece by piece: only what is requested is in memory.

Input: a path. Output: metadata by key, tensors by name, and rows of a tensor as fp32. The ``gguf`` package supplies the
types and the dequantisation. Its reader is not used: it keeps one object per vocabulary entry (SmolLM2: 160 MB and 4 s)
and maps the file, whose pages then count as this process's memory.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_Type = gguf.GGUFValueType
_SCALARS = {
    _Type.UINT8: "<u1", _Type.INT8: "<i1", _Type.UINT16: "<u2", _Type.INT16: "<i2", _Type.UINT32: "<u4",
    _Type.INT32: "<i4", _Type.UINT64: "<u8", _Type.INT64: "<i8", _Type.FLOAT32: "<f4", _Type.FLOAT64: "<f8",
    _Type.BOOL: "?",
}  # fmt: skip
"""The numpy dtype of each numeric type."""


MetadataValue = int | float | str | list[Any]


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """Where a tensor is in the file, and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Rows first; the file lists the fastest dimension first."""
    kind: gguf.GGMLQuantizationType
    offset: int
    """First byte in the file."""

    @property
    def row_bytes(self) -> int:
        """Stored size of one row (the last dimension)."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // block * size

    @property
    def num_rows(self) -> int:
        """Number of rows; a vector is one row."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """The directory of a GGUF file. Arrays and tensors are read on request."""

    path: Path
    tensors: dict[str, GgufTensor]
    scalars: dict[str, Any]
    """Metadata values that are numbers, strings or booleans."""
    _arrays: dict[str, int] = field(repr=False)
    """First byte of each array value."""

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Read the directory, and close the file.

        Raises:
            ValueError: not a GGUF file of a known version, or it ends too early.
            OSError: the file cannot be read.
        """
        with path.open("rb") as file:
            reader = _Reader(file)
            if reader.take(4) != _MAGIC:
                msg = "it does not begin with GGUF"
                raise ValueError(msg)
            version = reader.count("<u4")
            if version not in _VERSIONS:
                msg = f"its version is {version}; this reader supports {', '.join(map(str, _VERSIONS))}, little-endian"
                raise ValueError(msg)
            num_tensors, num_values = reader.count(), reader.count()
            scalars: dict[str, Any] = {}
            arrays: dict[str, int] = {}
            for _ in range(num_values):
                _read_metadata(reader, scalars, arrays)
            stored = [_read_tensor_info(reader) for _ in range(num_tensors)]
            begin = reader.position + -reader.position % _alignment(scalars)
            tensors = {t.name: replace(t, offset=begin + t.offset) for t in stored}
            _check_directory(tensors, num_tensors, reader.size)
        return cls(path=path, tensors=tensors, scalars=scalars, _arrays=arrays)

    def value(self, key: str) -> MetadataValue | None:
        """The metadata value of a key, arrays as lists; None if it is absent."""
        if key not in self._arrays:
            return self.scalars.get(key)
        with self.path.open("rb") as file:
            reader = _Reader(file)
            reader.skip(self._arrays[key])
            return _read_array(reader)

    def keys(self) -> Iterator[str]:
        """Every key of the metadata."""
        yield from self.scalars
        yield from self._arrays

    def rows(self, tensor: GgufTensor, begin: int, end: int) -> np.ndarray:
        """Rows ``[begin, end)``, dequantised: a new float32 array [end - begin, columns].

        Raises:
            NotImplementedError: gguf cannot dequantise ``tensor.kind``.
            OSError: the file has changed.
        """
        stored = np.empty((end - begin, tensor.row_bytes), np.uint8)
        with self.path.open("rb") as file:
            file.seek(tensor.offset + begin * tensor.row_bytes)
            if file.readinto(stored.data) != stored.nbytes:
                msg = f"{self.path} shrank while it was read; download it again"
                raise OSError(msg)
        return gguf.dequantize(stored, tensor.kind)


class _Reader:
    """Reads little-endian values in sequence, and refuses to read past the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size

    @property
    def position(self) -> int:
        return self._file.tell()

    def take(self, num_bytes: int) -> bytes:
        # Checked first: a damaged length must not allocate terabytes.
        content = self._file.read(num_bytes) if num_bytes <= self.size else b""
        if len(content) < num_bytes:
            msg = f"it ends after {self.size} bytes, in the middle of its directory"
            raise ValueError(msg)
        return content

    def skip(self, num_bytes: int) -> None:
        self._file.seek(num_bytes, os.SEEK_CUR)

    def number(self, kind: str) -> int | float | bool:
        return self.numbers(kind, 1)[0].item()

    def count(self, kind: str = "<u8") -> int:
        return int(self.number(kind))

    def numbers(self, kind: str, count: int) -> np.ndarray:
        return np.frombuffer(self.take(np.dtype(kind).itemsize * count), kind)

    def text(self) -> str:
        return self.take(self.count()).decode("utf-8")

    def skip_texts(self, count: int) -> None:
        for _ in range(count):
            # Not count(), for speed: a vocabulary has a hundred thousand texts.
            self.skip(struct.unpack("<Q", self.take(8))[0])


def _read_metadata(reader: _Reader, scalars: dict[str, Any], arrays: dict[str, int]) -> None:
    key, kind = reader.text(), _Type(reader.count("<u4"))
    if key in scalars or key in arrays:
        msg = f"it has the key {key} twice"
        raise ValueError(msg)
    if kind == _Type.ARRAY:
        arrays[key] = reader.position
        item, count = _Type(reader.count("<u4")), reader.count()
        if item == _Type.STRING:
            reader.skip_texts(count)
        else:
            reader.skip(np.dtype(_number_type(item, key)).itemsize * count)
    else:
        is_text = kind == _Type.STRING
        scalars[key] = reader.text() if is_text else reader.number(_number_type(kind, key))


def _read_array(reader: _Reader) -> list[Any]:
    item, count = _Type(reader.count("<u4")), reader.count()
    if item == _Type.STRING:
        return [reader.text() for _ in range(count)]
    return reader.numbers(_SCALARS[item], count).tolist()


def _number_type(kind: gguf.GGUFValueType, key: str) -> str:
    if kind not in _SCALARS:
        msg = f"{key} holds arrays of arrays, which are not supported"
        raise ValueError(msg)
    return _SCALARS[kind]


def _read_tensor_info(reader: _Reader) -> GgufTensor:
    """A tensor's entry; its offset is relative to the end of the directory."""
    name, num_dims = reader.text(), reader.count("<u4")
    shape = tuple(reversed(reader.numbers("<u8", num_dims).tolist()))
    kind = gguf.GGMLQuantizationType(reader.count("<u4"))
    return GgufTensor(name=name, shape=shape, kind=kind, offset=reader.count())


def _alignment(scalars: dict[str, Any]) -> int:
    alignment = scalars.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        msg = f"general.alignment = {alignment!r} is not a power of two"
        raise ValueError(msg)
    return alignment


def _check_directory(tensors: dict[str, GgufTensor], num_tensors: int, file_size: int) -> None:
    if len(tensors) != num_tensors:
        msg = f"it lists {num_tensors} tensors with only {len(tensors)} different names"
        raise ValueError(msg)
    for tensor in tensors.values():
        block, _ = gguf.GGML_QUANT_SIZES[tensor.kind]
        if not tensor.shape or tensor.shape[-1] % block:
            msg = f"{tensor.name} has shape {list(tensor.shape)}, but {tensor.kind.name} stores rows in blocks of {block}"
            raise ValueError(msg)
        end = tensor.offset + tensor.num_rows * tensor.row_bytes
        if end > file_size:
            msg = f"{tensor.name} would end at byte {end}, but the file has {file_size} bytes"
            raise ValueError(msg)
