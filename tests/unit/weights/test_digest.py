import pytest
import torch
from helpers.planted_fault import nudged
from helpers.tiny_models import tiny_model
from hypothesis import given
from hypothesis import strategies as st

from zerogap.errors import WeightSyncError
from zerogap.kernels import round_bf16
from zerogap.weights import digest as digest_module
from zerogap.weights import (
    digest_tensor,
    digest_weights,
    named_weights,
    places_of,
    weight_fingerprint,
)


@pytest.fixture(params=["tied", "untied"])
def model(request):
    return tiny_model("qwen3", tie_word_embeddings=request.param == "tied")


def test_the_same_weights_have_the_same_digest(model):
    weights, copies = named_weights(model), copy_of(named_weights(model))
    assert digest_weights(weights) == digest_weights(copies)
    assert digest_weights(weights).hex == digest_weights(copies).hex == weight_fingerprint(model)
    assert not digest_weights(weights).differences(digest_weights(copies))


def test_the_smallest_change_of_any_tensor_shows_and_is_named(model):
    before = digest_weights(named_weights(model))
    for name, tensor in named_weights(model).items():
        flat = tensor.view(-1)
        kept = flat[-1].clone()
        flat[-1] = torch.nextafter(kept, torch.tensor(10.0))
        after = digest_weights(named_weights(model))
        assert after.differences(before) == before.differences(after) == (name,)
        assert after.hex != before.hex, name
        flat[-1] = kept
    assert digest_weights(named_weights(model)) == before


def test_two_rows_or_two_tensors_that_change_places_show():
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
    digest = digest_weights({"a": a, "b": b})
    assert digest_weights({"a": a.flip(0), "b": b}).differences(digest) == ("a",)
    assert digest_weights({"a": b, "b": a}).differences(digest) == ("a", "b")


@pytest.mark.parametrize(
    "other",
    [
        torch.arange(6.0).reshape(3, 2),
        torch.arange(6.0).reshape(2, 3).view(torch.int32),
        -torch.arange(6.0).reshape(2, 3),
    ],
    ids=["shape", "dtype", "minus zero"],
)
def test_equal_bytes_or_values_are_not_enough(other):
    digest = digest_weights({"a": torch.arange(6.0).reshape(2, 3)})
    assert digest_weights({"a": other}).differences(digest) == ("a",)


def test_a_tensor_that_only_one_side_has_is_named():
    one = {"a": torch.ones(2)}
    two = one | {"b": torch.ones(2)}
    assert digest_weights(one).differences(digest_weights(two)) == ("b",)
    assert digest_weights(two).differences(digest_weights(one)) == ("b",)


def test_a_tensor_of_another_name_is_another_model():
    one, renamed = {"a": torch.ones(2)}, {"b": torch.ones(2)}
    assert digest_weights(one).differences(digest_weights(renamed)) == ("a", "b")
    assert digest_weights(one).hex != digest_weights(renamed).hex


@given(order=st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_names_does_not_matter(order):
    tensors = {name: torch.full((3,), float(i)) for i, name in enumerate("abcd")}
    digest = digest_weights({name: tensors[name] for name in order})
    assert digest.hex == digest_weights(tensors).hex
    moved = tensors | {"a": nudged(tensors["a"])}
    assert digest.hex != digest_weights({name: moved[name] for name in order}).hex


def test_a_storage_with_two_names_is_read_once(monkeypatch):
    read = []
    monkeypatch.setattr(
        digest_module, "digest_tensor", lambda t: read.append(t) or digest_tensor(t)
    )
    shared = torch.ones(4, 5)
    digest = digest_weights({"embed": shared, "head": shared.view(4, 5), "norm": torch.ones(5)})
    assert len(read) == 2
    assert digest.tensors["embed"] == digest.tensors["head"]
    apart = digest_weights({"embed": shared, "head": shared.clone(), "norm": torch.ones(5)})
    assert apart == digest
    assert len(read) == 2 + 3


@pytest.mark.parametrize(
    "tensor", [torch.tensor(2.0), torch.ones(2, 3).bfloat16(), torch.arange(12.0).reshape(3, 4).T]
)
def test_scalars_bf16_and_transposed_tensors_have_digests_of_their_values(tensor):
    digest = digest_weights({"a": tensor})
    assert digest == digest_weights({"a": tensor.clone().contiguous()})
    assert digest != digest_weights({"a": nudged(tensor)})


def test_rounding_is_part_of_what_is_digested():
    tensor = torch.tensor([1.0, 1.0 + 2**-12])
    rounded = digest_weights({"a": tensor}, rounding=round_bf16)
    assert rounded == digest_weights({"a": torch.ones(2)})
    assert rounded != digest_weights({"a": tensor})


def test_no_tensors_have_no_digest():
    with pytest.raises(WeightSyncError, match="no tensors"):
        digest_weights({})


def test_storage_is_the_same_only_if_every_name_lies_at_one_place():
    model = tiny_model()
    places = places_of(named_weights(model))
    assert places == places_of(named_weights(model))
    assert places != places_of(copy_of(named_weights(model)))
    square = torch.ones(3, 3)
    assert places_of({"a": square}) != places_of({"a": square.T})
    assert places_of({"a": square}) != places_of({"a": square, "b": square})


def copy_of(weights):
    return {name: tensor.clone() for name, tensor in weights.items()}
