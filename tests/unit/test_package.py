"""``import zerogap``: the names that people need, imported when they are used."""

import importlib
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
from helpers.chat_tokenizers import LLAMA3_LIKE_TEMPLATE, chat_tokenizer
from helpers.recipes import TINY_POLICY

import zerogap


@pytest.mark.parametrize("name", zerogap.__all__)
def test_every_name_is_that_of_its_room(name):
    found = getattr(zerogap, name)
    assert found is getattr(importlib.import_module(f"zerogap.{zerogap._ROOM_OF[name]}"), name)
    assert found.__module__.startswith("zerogap.")
    assert name in dir(zerogap)


def test_the_lists_agree_and_an_unknown_name_is_an_attribute_error():
    assert set(zerogap.__all__) == zerogap._ROOM_OF.keys()
    with pytest.raises(AttributeError, match="no attribute 'Engineer'"):
        _ = zerogap.Engineer
    with pytest.raises(ImportError):
        exec("from zerogap import Engineer")


def test_importing_the_package_imports_no_room():
    code = "import sys, zerogap; print([m for m in sys.modules if m.startswith(('zerogap.', 'torch', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_package_says_that_it_is_typed():
    assert files("zerogap").joinpath("py.typed").is_file()


def test_text_messages_and_ids_are_three_ways_to_the_same_tokens():
    policy = zerogap.load_policy(zerogap.ModelSection.model_validate(TINY_POLICY))
    policy = replace(policy, tokenizer=chat_tokenizer(LLAMA3_LIKE_TEMPLATE))
    engine = policy.engine()
    params = zerogap.SamplingParams(n=2, max_new_tokens=5, sampling_seed=3)
    messages = [{"role": "user", "content": "2+2?"}]
    for prompt, ids in (
        ("2+2?", policy.tokenizer.encode("2+2?", add_special=True)),
        (messages, policy.tokenizer.apply_chat_template(messages)),
    ):
        ours, theirs = engine.generate(prompt, params), engine.generate([ids], params)
        assert [o.output_ids.tolist() for o in ours] == [o.output_ids.tolist() for o in theirs]
        assert np.array_equal(ours[0].prompt_ids, ids)
        assert all(isinstance(o.text, str) for o in ours)
