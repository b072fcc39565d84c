"""Our reader of GGUF files against gguf's own, which reads the same directory another way."""

import struct

import gguf
import numpy as np
import pytest
from helpers.gguf_files import write_model_gguf
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model

from zerogap.errors import ModelError
from zerogap.gguf_file import GgufFile

SIZES = {"hidden_size": 64, "intermediate_size": 96}
KINDS = ("Q8_0", "Q4_1", "F32", "Q4_0", "F16", "BF16")


@pytest.fixture
def path(tmp_path):
    extra = {
        "floats": [0.5, 1.5],
        "numbers": [1, 2, 3],
        "flag": True,
        "empty": "",
        "name": "caf\u00e9",
    }
    write_model_gguf(
        tmp_path / "m.gguf", tiny_model("qwen2", **SIZES), matrices=KINDS, metadata=extra
    )
    return tmp_path / "m.gguf"


def test_metadata_is_what_gguf_reads(path):
    theirs = gguf.GGUFReader(path)
    expected = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    ours = GgufFile.open(path)
    assert {key: ours.value(key) for key in ours.keys()} == expected
    assert ours.value("tokenizer.ggml.tokens")[:2] == ["t0", "t1"]
    assert ours.value("no.such.key") is None


def test_rows_are_what_gguf_dequantises(path):
    ours, theirs = GgufFile.open(path), gguf.GGUFReader(path)
    assert len({tensor.kind for tensor in ours.tensors.values()}) >= 5
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert list(mine.shape) == tensor.shape[::-1].tolist()
        whole = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(mine.num_rows, -1)
        np.testing.assert_array_equal(ours.rows(mine, 0, mine.num_rows), whole)
        np.testing.assert_array_equal(ours.rows(mine, mine.num_rows // 2, mine.num_rows), whole[mine.num_rows // 2 :])  # fmt: skip
    with planted_fault("one row too late"):
        mine = ours.tensors["blk.0.ffn_down.weight"]
        np.testing.assert_array_equal(ours.rows(mine, 1, 5), ours.rows(mine, 0, 4))


def test_a_file_cut_anywhere_is_refused(path):
    content = path.read_bytes()
    for length in {*range(0, 400, 7), *np.linspace(400, len(content) - 1, 60).astype(int).tolist()}:
        path.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"ends after|begin with|would end"):
            GgufFile.open(path)


def test_a_damaged_directory_is_refused(path):
    content = path.read_bytes()

    def is_refused(changed: bytes, why: str) -> None:
        path.write_bytes(changed)
        with pytest.raises(ModelError, match=why):
            GgufFile.open(path)

    is_refused(b"GGML" + content[4:], "does not begin with GGUF")
    is_refused(content[:4] + struct.pack(">I", 3) + content[8:], "version is 50331648")
    is_refused(content[:16] + struct.pack("<Q", 10**9) + content[24:], "ends after|not a valid|can't decode")  # fmt: skip
    key = b"general.architecture"
    at = content.index(key) - 8
    is_refused(content[:at] + struct.pack("<Q", 2**62) + content[at + 8 :], "ends after")
    alignment = gguf_with_alignment(path, 12)
    is_refused(alignment, "general.alignment = 12 is not a power of two")


def gguf_with_alignment(path, alignment: int) -> bytes:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("general.alignment", alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path.read_bytes()
