import pwd
from pathlib import Path

import pytest

from zerogap.config.env import let_torch_threads_sleep, read_environment
from zerogap.errors import ConfigError, ModelError
from zerogap.models import resolve_source


def test_defaults():
    environment = read_environment({})
    assert environment.kernels == "auto"
    assert environment.threads is None
    assert environment.cache == Path.home() / ".cache" / "zerogap"


def test_values_are_read():
    environment = read_environment(
        {
            "ZEROGAP_CACHE": "/tmp/c",
            "ZEROGAP_KERNELS": "torch",
            "ZEROGAP_THREADS": "3",
            "HOME": "/x",
        }
    )
    assert (environment.cache, environment.kernels, environment.threads) == (
        Path("/tmp/c"),
        "torch",
        3,
    )


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch):
    def nobody(*_):
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(ConfigError, match=r"no home folder .* set ZEROGAP_CACHE to a folder"):
        read_environment({})
    assert read_environment({"ZEROGAP_CACHE": "/tmp/c"}).cache == Path("/tmp/c")
    with pytest.raises(ModelError, match="home folder is not known; write the whole path"):
        resolve_source("~/model")


def test_every_bad_value_is_refused_at_once():
    bad = {
        "ZEROGAP_KERNELS": "cuda",
        "ZEROGAP_THREADS": "0",
        "ZEROGAP_CACHE": " ",
        "ZEROGAP_KERNEL": "x",
    }
    with pytest.raises(ConfigError) as error:
        read_environment(bad)
    text = str(error.value)
    assert "ZEROGAP_KERNELS = 'cuda'" in text
    assert "ZEROGAP_THREADS = '0'" in text
    assert "ZEROGAP_CACHE = ' '" in text
    assert "ZEROGAP_KERNEL: unknown variable" in text
    assert "did you mean ZEROGAP_KERNELS?" in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "1000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_torch_threads_sleep_soon_unless_the_user_decides(given, expected):
    let_torch_threads_sleep(given)
    assert given == expected
