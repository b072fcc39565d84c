import pytest
import torch
from helpers.tiny_models import tiny_model

from zerogap.run.fingerprint import weight_fingerprint


@pytest.fixture(params=["tied", "untied"])
def model(request):
    return tiny_model("qwen3", tie_word_embeddings=request.param == "tied")


def test_the_same_weights_have_the_same_fingerprint(model):
    assert weight_fingerprint(model) == weight_fingerprint(model)


def test_the_smallest_change_of_any_tensor_shows(model):
    before = weight_fingerprint(model)
    for name, parameter in model.named_parameters():
        flat = parameter.detach().view(-1)
        kept = flat[-1].clone()
        flat[-1] = torch.nextafter(kept, torch.tensor(10.0))
        assert weight_fingerprint(model) != before, name
        flat[-1] = kept
    assert weight_fingerprint(model) == before


def test_two_values_that_change_places_show(model):
    before = weight_fingerprint(model)
    with torch.no_grad():
        weight = model.layers[0].qkv.weight
        weight[[0, 1]] = weight[[1, 0]].clone()
    assert weight_fingerprint(model) != before
