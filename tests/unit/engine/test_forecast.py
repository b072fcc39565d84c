from helpers.fake_runner import fake_engine, run_until_idle
from helpers.sequences import make_sequence

from zerogap.engine.forecast import Forecast
from zerogap.engine.sequence import Sequence
from zerogap.types import GenerateRequest, SamplingParams


def sequence(*, num_output=0, max_new_tokens=160) -> Sequence:
    return make_sequence(range(16), num_output=num_output, max_new_tokens=max_new_tokens)


def test_a_new_sequence_is_expected_to_use_half_of_what_it_may():
    assert Forecast().peak_growth([sequence()]) == 5
    assert Forecast().peak_growth([]) == 0


def test_equal_sequences_grow_together():
    assert Forecast().peak_growth([sequence()] * 4) == 4 * 5


def test_pages_that_come_back_before_others_grow_are_not_needed_twice():
    old = sequence(num_output=160 - 16)
    # When the old one ends, after one page each, its 10 pages serve the new one's other 4.
    assert Forecast().peak_growth([old, sequence()]) == 2
    old_ends_now = sequence(num_output=160)
    assert Forecast().peak_growth([old_ends_now, sequence()]) == 0


def test_a_sequence_grows_no_further_than_it_may():
    assert Forecast().peak_growth([sequence(max_new_tokens=16)]) == 1


def test_a_sequence_past_its_expected_length_still_grows_a_little():
    assert Forecast().peak_growth([sequence(num_output=96)]) == 2


def test_long_completions_teach_to_expect_long_ones():
    forecast = Forecast()
    for _ in range(200):
        forecast.observe_end(sequence(num_output=160))
    assert forecast.peak_growth([sequence()]) == 10


def test_little_is_computed_twice_when_pages_are_short():
    core, runner = fake_engine(num_pages=20, max_running=16, max_scheduled_tokens=128)
    for seed in range(40):
        params = SamplingParams(n=4, max_new_tokens=60, sampling_seed=seed, ignore_eos=True)
        prompt = tuple(1 + (seed * j) % 9 for j in range(20))
        core.add_request(GenerateRequest(input_ids=prompt, sampling_params=params))
    run_until_idle(core)
    assert core.stats.num_recomputed_tokens < 0.1 * runner.num_rows
    # A sequence needs 5 pages in the end and shares one of them.
    assert core.stats.num_sampled_tokens / core.stats.num_steps > 4
