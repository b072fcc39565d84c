import itertools
from collections import defaultdict

import torch
from helpers.examples import examples
from helpers.tiny_models import FAMILIES
from hypothesis import given, settings
from hypothesis import strategies as st

from zerogap.models import CausalLM, ModelConfig, hf_tensors
from zerogap.models.names import tensor_rows


@st.composite
def configs(draw) -> ModelConfig:
    num_kv_heads = draw(st.integers(1, 3))
    return ModelConfig(
        family=draw(st.sampled_from(FAMILIES)),
        vocab_size=draw(st.integers(1, 20)),
        hidden_size=draw(st.integers(1, 9)),
        intermediate_size=draw(st.integers(1, 9)),
        num_layers=draw(st.integers(1, 3)),
        num_heads=num_kv_heads * draw(st.integers(1, 3)),
        num_kv_heads=num_kv_heads,
        head_dim=2 * draw(st.integers(1, 4)),
        tie_word_embeddings=draw(st.booleans()),
    )


@given(configs())
def test_the_name_map_is_a_bijection(config):
    rows = list(tensor_rows(config))
    assert len({r.hf_name for r in rows}) == len(rows)
    spans = defaultdict(list)
    for r in rows:
        spans[r.parameter].append((r.start, r.end))
    parameters = dict(CausalLM(config).named_parameters())
    assert spans.keys() == parameters.keys()
    for name, parts in spans.items():
        # In order, without gap or overlap: every row of every parameter has exactly one name.
        assert parts[0][0] == 0
        assert parts[-1][1] == len(parameters[name])
        assert all(a[1] == b[0] for a, b in itertools.pairwise(parts))


@given(configs())
@settings(max_examples=examples(20))
def test_filling_every_view_fills_the_model_and_nothing_twice(config):
    model = CausalLM(config)
    for number, (_, view) in enumerate(hf_tensors(model)):
        assert view.isnan().all()
        view.fill_(float(number))
    assert not any(torch.isnan(p).any() for p in model.parameters())
