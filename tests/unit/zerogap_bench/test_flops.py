from dataclasses import replace

import pytest

from zerogap_bench.flops import (
    ModelShape,
    PromptWork,
    conventional_flops,
    decode_bytes,
    forward_work,
    gemm_flops,
    generation_work,
    keys_seen,
    kv_bytes_per_token,
    num_generation_rows,
    num_sequence_tokens,
    num_training_rows,
    training_work,
)

SHAPE = ModelShape(
    hidden_size=4,
    intermediate_size=6,
    num_layers=3,
    num_heads=2,
    num_kv_heads=1,
    head_dim=5,
    vocab_size=7,
)
LAYER = 4 * (10 + 2 * 5) + 10 * 4 + 4 * 12 + 6 * 4
ONE_PROMPT = [PromptWork(num_prompt=3, num_cached=0, num_answers=(2, 4))]


def count_by_hand(shape: ModelShape, rows: list[int], num_head_rows: int) -> float:
    """Rows by position, with every loop written out."""
    total = 2 * shape.hidden_size * shape.vocab_size * num_head_rows
    for position in rows:
        total += 2 * shape.num_layers * LAYER
        for _layer in range(shape.num_layers):
            for _head in range(shape.num_heads):
                total += (position + 1) * 2 * (2 * shape.head_dim)
    return total


def test_smollm2_has_106_million_parameters_in_its_layers_and_28_in_its_head():
    smollm2 = ModelShape(
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49_152,
    )
    assert smollm2.body_parameters == 106_168_320
    assert smollm2.head_parameters == 28_311_552


def test_body_parameters_are_the_projections_of_all_layers():
    assert SHAPE.body_parameters == 3 * LAYER


def test_keys_seen_is_the_sum_over_positions():
    assert keys_seen(3, 8) == sum(position + 1 for position in range(3, 8))


def test_generation_computes_the_prompt_once_and_never_the_last_token():
    prompt, first, second = [0, 1, 2], [3], [3, 4, 5]
    rows = [*prompt, *first, *second]
    assert generation_work(SHAPE, ONE_PROMPT).total == count_by_hand(SHAPE, rows, num_head_rows=6)


def test_generation_gets_no_credit_for_cached_rows():
    cached = [replace(ONE_PROMPT[0], num_cached=2)]
    prompt, first, second = [2], [3], [3, 4, 5]
    rows = [*prompt, *first, *second]
    assert generation_work(SHAPE, cached).total == count_by_hand(SHAPE, rows, num_head_rows=6)


def test_training_is_three_forward_passes_and_does_not_profit_from_the_cache():
    cached = [replace(ONE_PROMPT[0], num_cached=2)]
    forward = generation_work(SHAPE, ONE_PROMPT)
    assert training_work(SHAPE, cached).total == 3 * forward.total
    assert num_training_rows(cached) == 7


def test_answers_that_begin_alike_get_no_credit_for_rows_they_share():
    whole = training_work(SHAPE, ONE_PROMPT)
    assert training_work(SHAPE, ONE_PROMPT, num_distinct_rows=7) == whole
    assert training_work(SHAPE, ONE_PROMPT, num_distinct_rows=9) == whole
    shared = training_work(SHAPE, ONE_PROMPT, num_distinct_rows=6)
    assert shared.total == pytest.approx(whole.total * 6 / 7)


def test_recomputation_is_a_fourth_pass_of_everything_but_the_head():
    forward = generation_work(SHAPE, ONE_PROMPT)
    work = training_work(SHAPE, ONE_PROMPT, recompute=True)
    assert work.body == 4 * forward.body
    assert work.attention == 4 * forward.attention
    assert work.head == 3 * forward.head


def test_work_of_the_products_adds_up_to_body_and_head():
    work = forward_work(SHAPE, num_rows=5, num_head_rows=2, num_keys=9)
    flops = gemm_flops(SHAPE, work)
    assert sum(flops.values()) == work.body + work.head
    assert flops["down"] == 2 * 5 * 3 * 6 * 4


def test_the_conventional_count_has_the_head_at_every_token_and_a_prompt_for_every_answer():
    parameters = 3 * LAYER + 4 * 7
    tokens = num_sequence_tokens(ONE_PROMPT)
    assert tokens == (3 + 2) + (3 + 4)
    assert conventional_flops(SHAPE, num_tokens=tokens, factor=6) == 6 * parameters * 12


def test_a_decoded_token_reads_every_matrix_once_and_the_keys_and_values_before_it():
    one_token = 2 * 4 * 3 * 1 * 5
    assert kv_bytes_per_token(SHAPE) == one_token
    # The answer's tokens at positions 3, 4 and 5 are fed back and see 4, 5 and 6 keys.
    weights = 4 * (3 * LAYER + 4 * 7)
    assert decode_bytes(SHAPE, num_prompt=3, num_answer=4) == weights + 5 * one_token


def test_rows_and_logits_that_answers_share_get_no_credit():
    whole = generation_work(SHAPE, ONE_PROMPT)
    num_rows = num_generation_rows(ONE_PROMPT)
    assert num_rows == 3 + 1 + 3
    assert generation_work(SHAPE, ONE_PROMPT, num_rows=num_rows, num_head_rows=6) == whole
    shared = generation_work(SHAPE, ONE_PROMPT, num_rows=num_rows - 2, num_head_rows=3)
    assert shared.body == pytest.approx(whole.body * 5 / 7)
    assert shared.attention == pytest.approx(whole.attention * 5 / 7)
    assert shared.head == pytest.approx(whole.head / 2)
