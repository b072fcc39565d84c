import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_models import FAMILIES, tiny_config, tiny_model
from helpers.tolerance import EXACT, GRADIENT

from zerogap import kernels
from zerogap.models import CausalLM

SEQUENCES = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [27, 18, 28])


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_sequence_has_the_bits_it_has_alone(family):
    model = tiny_model(family)
    together = PackedRows(SEQUENCES).logits(model)
    alone = torch.cat([PackedRows([ids]).logits(model) for ids in SEQUENCES])
    EXACT.check(together, alone)
    with planted_fault("sequences joined"):
        EXACT.check(together, PackedRows([SEQUENCES[0] + SEQUENCES[1]]).logits(model))


def test_packed_gradients_are_the_sum_of_those_alone():
    gradients = []
    for batches in ([SEQUENCES], [[ids] for ids in SEQUENCES]):
        model = tiny_model("qwen3")
        for sequences in batches:
            PackedRows(sequences).logits(model).logsumexp(-1).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    GRADIENT.check(gradients[0], gradients[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_parameter_frozen_by_name_has_no_gradient_and_the_others_keep_theirs(family):
    def gradients(frozen) -> dict[str, torch.Tensor]:
        model = tiny_model(family)
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        PackedRows(SEQUENCES).logits(model, recompute=True).logsumexp(-1).sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    every = gradients(())
    below_last = [name for name in every if not name.startswith("layers.1.")]
    for frozen in [*([name] for name in every), below_last]:
        kept = {name: gradient for name, gradient in every.items() if name not in frozen}
        EXACT.check(gradients(frozen), kept)
    with planted_fault("a frozen parameter that trains"):
        EXACT.check(gradients(()), kept)


def test_gemm_shapes_are_those_of_the_weights_and_of_the_heads_chunks():
    model = tiny_model("qwen3")
    matrices = [p.shape for p in model.layers.parameters() if p.dim() == 2]
    layers = {(num_in, num_out) for num_out, num_in in matrices}
    model.limit_vocabulary(90)
    assert model.gemm_shapes() == layers | {(32, 90)}
    chunk = kernels.VOCAB_CHUNK
    for vocab_limit, heads in ((2 * chunk, {(32, chunk)}), (2 * chunk + 5, {(32, chunk), (32, 5)})):
        model = tiny_model("qwen3", vocab_size=vocab_limit)
        assert model.gemm_shapes() == layers | heads


def test_parameter_names_are_the_agreed_ones():
    names = {n for n, _ in tiny_model("qwen2", num_layers=1).named_parameters()}
    layer = {"input_norm.weight", "qkv.weight", "qkv.bias", "o.weight"}
    layer |= {"post_norm.weight", "gate_up.weight", "down.weight"}
    expected = {f"layers.0.{name}" for name in layer}
    assert names == expected | {"embed_tokens.weight", "norm.weight", "lm_head.weight"}
    qwen3 = {n for n, _ in tiny_model("qwen3", num_layers=1).named_parameters()}
    assert {"layers.0.q_norm.weight", "layers.0.k_norm.weight"} <= qwen3
    assert "layers.0.qkv.bias" not in qwen3


def test_a_tied_head_is_the_embedding_itself():
    tied = tiny_model(tie_word_embeddings=True)
    assert tied.head_weight is tied.embed_tokens.weight
    assert not hasattr(tied, "lm_head")
    untied = tiny_model()
    assert untied.head_weight is untied.lm_head.weight


def test_a_forgotten_load_is_loud():
    assert all(parameter.isnan().all() for parameter in CausalLM(tiny_config()).parameters())


def test_fresh_weights_depend_on_the_seed_alone():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(models))
        models.append(
            dict(CausalLM(tiny_config("qwen2")).init_weights(seed=seed).named_parameters())
        )
    EXACT.check(models[1], models[0])
    with planted_fault("another seed"):
        EXACT.check(models[2], models[0])


def test_fresh_weights_have_hugging_faces_spread():
    model = CausalLM(tiny_config("qwen2", hidden_size=64)).init_weights(seed=0)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all()
        elif parameter.dim() == 1:
            assert (parameter == 1).all()
        else:
            assert 0.018 < parameter.std() < 0.022
            assert parameter.mean().abs() < 0.002


def test_layers_call_attention_in_order_with_rotated_heads():
    model, calls = tiny_model("llama"), []

    def attention(layer, q_TNH, k_TKH, v_TKH):
        calls.append((layer, tuple(q_TNH.shape), tuple(k_TKH.shape), tuple(v_TKH.shape)))
        return torch.zeros_like(q_TNH)

    hidden = model(torch.tensor([1, 2, 3]), torch.arange(3), attention)
    assert hidden.shape == (3, 32)
    assert calls == [(i, (3, 4, 16), (3, 2, 16), (3, 2, 16)) for i in range(2)]
