from helpers.tiny_models import tiny_config, tiny_model

from zerogap.models import hf_tensors
from zerogap.models.names import tensor_rows


def test_writing_to_a_view_changes_the_model():
    model = tiny_model("qwen2")
    views = dict(hf_tensors(model))
    views["model.layers.1.self_attn.k_proj.bias"].fill_(7.0)
    num_query_rows = 4 * 16
    assert (model.layers[1].qkv.bias[num_query_rows : num_query_rows + 2 * 16] == 7.0).all()


def test_views_are_contiguous_and_need_no_gradient():
    for _, view in hf_tensors(tiny_model("qwen3")):
        assert view.is_contiguous()
        assert not view.requires_grad


def test_a_tied_head_has_one_name():
    names = [rows.hf_name for rows in tensor_rows(tiny_config(tie_word_embeddings=True))]
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in [rows.hf_name for rows in tensor_rows(tiny_config())]
