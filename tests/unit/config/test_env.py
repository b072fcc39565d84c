from pathlib import Path

import pytest

from zerogap.config.env import read_environment
from zerogap.errors import ConfigError


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
    assert "ZEROGAP_KERNEL: no such variable" in text
    assert "did you mean ZEROGAP_KERNELS?" in text
