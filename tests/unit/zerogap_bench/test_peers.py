from pathlib import Path

import pytest

from zerogap_bench import peers
from zerogap_bench.peers import PEER_NAMES, Choice


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda _name: None)


@pytest.mark.parametrize("name", PEER_NAMES)
@pytest.mark.usefixtures("nothing_installed")
def test_a_peer_that_is_not_there_says_how_to_get_it(name: str):
    choice = Choice(PEER_NAMES, None)
    assert not choice.takes(name)
    assert "pip install" in choice.why_not(name)


@pytest.mark.usefixtures("nothing_installed")
def test_vllm_may_live_in_another_environment():
    assert Choice(PEER_NAMES, Path("venv/bin/python")).takes("vllm")


def test_a_peer_that_was_not_asked_for_takes_no_part():
    assert not Choice(("trl",), None).takes("transformers")
    assert Choice(("transformers",), None).takes("transformers")
