from helpers.fake_runner import fake_engine, run_until_idle

from zerogap.types import GenerateRequest, SamplingParams


def make_request(prompt, **params) -> GenerateRequest:
    return GenerateRequest(
        input_ids=prompt,
        sampling_params=SamplingParams(ignore_eos=True, sampling_seed=1, **params),
    )


def test_every_row_is_counted_once_under_what_it_was_for():
    core, runner = fake_engine()
    core.add_request(make_request((1,) * 20, n=2, max_new_tokens=6))
    for _ in range(4):
        core.step()
    core.pause_generation("retract")
    core.flush_cache()
    core.continue_generation()
    run_until_idle(core)
    stats = core.stats
    assert stats.num_computed_tokens == runner.num_rows
    assert stats.num_prefill_tokens == 20
    assert stats.num_decode_tokens == 2 * 5
    # The first shares the prompt with the second again; their own tokens are computed twice.
    assert stats.num_recomputed_tokens == runner.num_rows - 30
    assert stats.num_sampled_tokens == 12
    assert (stats.num_finished, stats.num_aborted, stats.num_retractions) == (2, 0, 2)


def test_two_snapshots_give_what_happened_between_them():
    core, _ = fake_engine()
    core.add_request(make_request((1, 2, 3), max_new_tokens=2))
    run_until_idle(core)
    before = core.stats
    core.add_request(make_request((4, 5), max_new_tokens=3))
    run_until_idle(core)
    spent = core.stats - before
    assert (spent.num_prefill_tokens, spent.num_sampled_tokens, spent.num_steps) == (2, 3, 3)
    assert spent.compute_s > 0
    assert before.num_steps == 2, "a snapshot changed"
