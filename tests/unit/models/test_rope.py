import pytest
from helpers.tiny_models import LLAMA3_SCALING

from zerogap.errors import ModelError
from zerogap.models import RopeScaling
from zerogap.models.rope import inverse_frequencies


def test_the_tiny_models_rope_has_waves_of_all_three_kinds():
    ratio = inverse_frequencies(16, 500.0, None) / inverse_frequencies(16, 500.0, LLAMA3_SCALING)
    assert ratio[0] == 1
    assert ratio[-1] == 8
    assert ((ratio > 1.01) & (ratio < 7.9)).any()


def test_impossible_scalings_are_refused():
    with pytest.raises(ModelError, match=r"low_freq_factor = 4\.0"):
        RopeScaling("llama3", 8.0, low_freq_factor=4.0, high_freq_factor=4.0)
    with pytest.raises(ModelError, match="'yarn'"):
        RopeScaling("yarn", 8.0)
