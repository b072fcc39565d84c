"""A tokenizer trained here and stored as GGUF metadata, as llama.cpp does, must come back unchanged."""

import json

import pytest
import tokenizers
from helpers.gguf_vocabulary import CUTS, TEXTS, save_as_gguf, trained_tokenizer
from helpers.planted_fault import planted_fault

from zerogap.data import Tokenizer, write_tokenizer_files
from zerogap.errors import DataError, ModelError


@pytest.mark.parametrize("pre", CUTS)
def test_ids_and_text_are_those_of_the_original(tmp_path, pre):
    original = trained_tokenizer(pre)
    write_tokenizer_files(save_as_gguf(tmp_path / "v.gguf", original, pre), tmp_path)
    ours = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = [original.encode(text).ids for text in TEXTS]
    assert [ours.encode(text).ids for text in TEXTS] == ids
    assert [ours.decode(i, skip_special_tokens=False) for i in ids] == [
        original.decode(i, skip_special_tokens=False) for i in ids
    ]


@pytest.mark.parametrize(("pre", "wrong"), [("smollm", "qwen2"), ("qwen2", "llama-bpe")])
def test_another_cut_would_be_noticed(tmp_path, pre, wrong):
    original = trained_tokenizer(pre)
    write_tokenizer_files(save_as_gguf(tmp_path / "v.gguf", original, wrong), tmp_path)
    ours = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    with planted_fault(f"text cut as {wrong}"):
        assert [ours.encode(t).ids for t in TEXTS] == [original.encode(t).ids for t in TEXTS]


def test_padding_of_the_head_is_no_token(tmp_path):
    original = trained_tokenizer("qwen2")
    write_tokenizer_files(save_as_gguf(tmp_path / "v.gguf", original, "qwen2"), tmp_path)
    ours = Tokenizer.load(tmp_path)
    assert ours.vocab_size == original.get_vocab_size()


def test_special_tokens_template_and_end_ids_arrive(tmp_path):
    original = trained_tokenizer("smollm")
    write_tokenizer_files(
        save_as_gguf(tmp_path / "v.gguf", original, "smollm", eot_token_id=0), tmp_path
    )
    ours = Tokenizer.load(tmp_path)
    assert (ours.bos_token_id, ours.pad_token_id, ours.eos_token_ids) == (1, 2, (0, 2))
    assert not ours.adds_bos
    assert ours.render_chat([{"role": "user", "content": "hi"}]) == "<|start|>hi<|end|>\n"
    ids = ours.encode("<|start|>hi<think><|end|>")
    assert ours.decode(ids, skip_special=True) == "hi<think>"
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 256


@pytest.mark.parametrize(
    ("pre", "flag", "has_bos"),
    [
        ("smollm", None, False),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
        ("qwen2", True, True),
    ],
)
def test_the_beginning_is_marked_exactly_as_the_file_says(tmp_path, pre, flag, has_bos):
    path = save_as_gguf(tmp_path / "v.gguf", trained_tokenizer(pre), pre, add_bos_token=flag)
    write_tokenizer_files(path, tmp_path)
    ids = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("hi").ids
    assert ids.count(1) == has_bos
    assert (ids[0] == 1) == has_bos


def test_a_whole_piece_that_is_a_token_is_taken_without_merges(tmp_path):
    # Llama 3 has words in its vocabulary that its merges do not reach.
    original = trained_tokenizer("llama-bpe")
    ids = {}
    for pre in ("llama-bpe", "smollm"):
        path = save_as_gguf(tmp_path / "v.gguf", original, pre, merges=["h i"], add_bos_token=False)
        write_tokenizer_files(path, tmp_path)
        ours = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
        ids[pre] = ours.encode("Hello").tokens
    assert ids["llama-bpe"] == ["Hello"]
    assert len(ids["smollm"]) > 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pre": "tekken"}, ["'tekken'", "llama-bpe", "qwen2", "smollm"]),
        ({"pre": None}, ["tokenizer.ggml.pre = None"]),
        ({"model": "llama"}, ["'llama'", "byte-level BPE"]),
        ({"model": None}, ["None"]),
        ({"merges": None}, ["with merges"]),
    ],
)
def test_a_vocabulary_of_another_kind_is_refused(tmp_path, changes, named):
    path = save_as_gguf(
        tmp_path / "v.gguf", trained_tokenizer("smollm"), **({"pre": "smollm"} | changes)
    )
    with pytest.raises(DataError) as error:
        write_tokenizer_files(path, tmp_path / "out")
    for part in [str(path), *named]:
        assert part in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    (tmp_path / "v.gguf").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="cannot be read as GGUF"):
        write_tokenizer_files(tmp_path / "v.gguf", tmp_path)


def test_files_of_an_earlier_writing_are_replaced_and_nothing_else_is_left(tmp_path):
    path = save_as_gguf(tmp_path / "v.gguf", trained_tokenizer("smollm"), "smollm")
    out = tmp_path / "out"
    write_tokenizer_files(path, out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    (out / "tokenizer.json").write_text("broken")
    write_tokenizer_files(path, out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert set(before) == {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
    }
