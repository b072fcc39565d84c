"""An engine on its own thread gives many callers what the engine gives, and reports every error to them."""

import asyncio
import gc
import itertools
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.fake_runner import fake_engine
from helpers.generated import generated, outputs_of
from helpers.tiny_engine import prompt, reported, request, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT

from zerogap.engine import AsyncEngine, async_engine
from zerogap.errors import EngineStateError, InvalidRequest, NumericsError
from zerogap.weights import named_weights

ASKED = [
    request(prompt(21), rid="a", n=4),
    request(prompt(5, 1), rid="b", max_new_tokens=7),
    request(prompt(40, 2), rid="c", n=2, temperature=0.7),
    request(prompt(21), rid="d", sampling_seed=8),
]


@pytest.fixture
def started():
    """Engines that are closed at the end."""
    engines = []

    def start(core):
        engines.append(AsyncEngine(core))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def pause_when(core, is_time):
    """Stop in place after the step whose outputs fulfil ``is_time``, so that a test need not hurry."""
    step = core.step

    def stepping():
        outputs = step()
        if is_time(outputs):
            core.step = step
            core.pause_generation("in_place")
        return outputs

    core.step = stepping
    return core


def go_on(engine):
    engine.call(lambda core: core.continue_generation()).result()


async def paused(engine):
    while not engine.call(lambda core: core.is_paused).result():
        await asyncio.sleep(0)


def test_it_draws_what_the_engine_draws_in_as_many_steps(started):
    core = tiny_engine()
    expected = core.generate(ASKED)
    engine = started(tiny_engine())
    EXACT.check(reported(generated(engine, ASKED)), reported(expected))
    # Requests of one turn of the loop are scheduled together: counts do not depend on when the thread wakes.
    for name in (
        "num_steps",
        "num_shared_decode_tokens",
        "num_prefill_tokens",
        "num_cached_tokens",
    ):
        assert getattr(engine.stats, name) == getattr(core.stats, name)


def test_callers_on_several_threads_get_the_bits_they_would_get_alone(started):
    engine = started(tiny_engine())
    expected = [tiny_engine().generate([one]) for one in ASKED]
    with ThreadPoolExecutor(len(ASKED)) as threads:
        found = list(threads.map(lambda one: generated(engine, [one]), ASKED))
    EXACT.check([reported(f) for f in found], [reported(e) for e in expected])
    engine.call(lambda core: core.check_integrity()).result()


def test_a_sibling_arrives_when_it_ends_and_not_when_all_have(started):
    core, _ = fake_engine()
    engine = started(pause_when(core, bool))
    seen = []

    async def watch():
        asked = request(prompt(9), n=8, max_new_tokens=60, ignore_eos=False)
        async for update in engine.submit(asked):
            if not seen:
                assert engine.call(lambda core: core.num_running).result() > 0
                go_on(engine)
            seen.append(update.index)

    asyncio.run(watch())
    assert sorted(seen) == list(range(8))


def test_progress_is_cumulative_and_ends_with_the_output(started):
    def decode(ids, skip_special):
        return bytes(ids).decode(errors="replace")

    (expected,) = tiny_engine(detokenizer=decode).generate([request()])
    engine = started(tiny_engine(detokenizer=decode))

    async def watched():
        return [update async for update in engine.submit(request(), with_progress=True)]

    updates = asyncio.run(watched())
    assert [len(update.output_ids) for update in updates] == list(range(1, 21))
    for update, following in itertools.pairwise(updates):
        assert following.text.startswith(update.text)
        assert update.output is None
    EXACT.check(reported([updates[-1].output]), reported([expected]))
    assert updates[-1].text == expected.text


def test_a_caller_that_leaves_aborts_its_request_and_no_other(started):
    core = tiny_engine()
    engine = started(pause_when(core, lambda _: core.stats.num_steps == 3))

    async def leave():
        stays = asyncio.create_task(outputs_of(engine, request(rid="stays")))
        cancelled = asyncio.create_task(outputs_of(engine, request(rid="cancelled")))
        goes = engine.submit(request(rid="goes", n=2), with_progress=True)
        await anext(goes)
        await paused(engine)
        await goes.aclose()
        never = asyncio.create_task(outputs_of(engine, request(rid="never")))
        await asyncio.sleep(0)
        for task in (cancelled, never):
            task.cancel()
        await asyncio.gather(cancelled, never, return_exceptions=True)
        go_on(engine)
        return await stays

    (output,) = asyncio.run(leave())
    assert output.finish_reason.kind == "length"
    engine.call(lambda core: core.check_integrity()).result()
    assert engine.stats.num_finished == 1
    assert engine.stats.num_aborted in (3, 4), "the request that never began was opened or not"
    assert engine.call(lambda core: core.is_idle).result()


def test_an_aborted_request_gives_what_was_drawn(started):
    core = tiny_engine()
    engine = started(pause_when(core, lambda _: core.stats.num_steps == 3))

    async def aborted():
        found = []
        async for update in engine.submit(request(rid="x", n=2), with_progress=True):
            if not found:
                await paused(engine)
                await engine.abort("unknown")
                await engine.abort("x")
            found.append(update)
        return [update.output for update in found if update.output]

    outputs = asyncio.run(aborted())
    assert [output.finish_reason.kind for output in outputs] == ["abort", "abort"]
    assert all(0 < len(output.output_ids) < 20 for output in outputs)


def test_commands_are_done_between_steps_in_order(started):
    core = tiny_engine()
    engine = started(pause_when(core, lambda _: core.stats.num_steps == 3))

    async def updated():
        output = asyncio.create_task(outputs_of(engine, request()))
        await paused(engine)
        engine.call(lambda core: core.pause_generation("retract"))
        engine.begin_weight_update()
        engine.write_weights(named_weights(tiny_model()).items())
        engine.end_weight_update(3)
        assert engine.call(lambda core: core.num_waiting).result() == 1
        go_on(engine)
        return await output

    (output,) = asyncio.run(updated())
    assert output.weight_version.tolist() == [0] * 3 + [3] * 17


def test_what_a_step_raises_reaches_every_caller_and_the_engine_goes_on(started):
    core, runner = fake_engine()
    engine = started(core)
    run, asked = runner.run, [request(prompt(k), rid=f"r{k}", n=2) for k in range(3, 9)]

    def broken(batch):
        raise NumericsError("not finite")

    async def failing():
        runner.run = broken
        found = await asyncio.gather(
            *(outputs_of(engine, r) for r in asked), return_exceptions=True
        )
        assert [type(error) for error in found] == [NumericsError] * len(asked)
        runner.run = run
        return await asyncio.gather(*(outputs_of(engine, r) for r in asked))

    assert [len(outputs) for outputs in asyncio.run(failing())] == [2] * len(asked)
    engine.call(lambda core: core.check_integrity()).result()


def test_a_request_that_cannot_be_served_fails_alone(started):
    engine = started(tiny_engine())

    async def mixed():
        return await asyncio.gather(
            *(
                outputs_of(engine, r)
                for r in (request(rid="a"), request(rid="a"), request((1, 999)))
            ),
            return_exceptions=True,
        )

    good, *bad = asyncio.run(mixed())
    assert len(good) == 1
    assert [type(error) for error in bad] == [InvalidRequest] * 2


def test_what_a_command_raises_is_raised_where_it_is_waited_for(started):
    engine = started(tiny_engine())
    with pytest.raises(EngineStateError, match="without a begin_weight_update"):
        engine.end_weight_update(1)
    assert len(generated(engine, [request()])) == 1


def test_an_interrupt_ends_what_is_waited_for_and_leaves_nothing_behind(started):
    def interrupt(outputs):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return True

    core, _ = fake_engine()
    engine = started(pause_when(core, interrupt))
    # A shell's background job ignores SIGINT, and so would everything in it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            generated(engine, [request(prompt(9), n=4)])
    finally:
        signal.signal(signal.SIGINT, before)
    engine.call(lambda core: core.check_integrity()).result()
    assert engine.call(lambda core: core.is_idle).result()
    go_on(engine)
    assert len(generated(engine, [request(prompt(9), n=4)])) == 4


GOING_ON = {
    "pause_generation": ("continue_generation", ()),
    "release_memory_occupation": ("resume_memory_occupation", ()),
    "begin_weight_update": ("end_weight_update", (1,)),
}


@pytest.mark.parametrize("stopped", GOING_ON)
def test_a_stopped_engine_makes_its_callers_wait(started, stopped, caplog):
    core = tiny_engine()
    step = core.step

    def stepping():
        assert not core.is_stalled, "a step that does nothing: the thread should sleep"
        return step()

    core.step = stepping
    engine = started(core)
    call, given = GOING_ON[stopped]
    engine.call(lambda core: getattr(core, stopped)()).result()

    async def wait():
        waiting = asyncio.create_task(outputs_of(engine, request()))
        while not engine.call(lambda core: core.num_waiting).result():
            await asyncio.sleep(0)
        assert engine.stats.num_steps == 0
        engine.call(lambda core: getattr(core, call)(*given))
        return await waiting

    assert len(asyncio.run(wait())) == 1
    assert not caplog.records


@pytest.mark.parametrize("stopped", GOING_ON)
def test_a_forgotten_call_is_named_in_the_log_once(started, stopped, caplog, monkeypatch):
    monkeypatch.setattr(async_engine, "_WARN_AFTER_S", 0.0)
    monkeypatch.setattr(async_engine, "stamp", lambda: "NOON")
    engine = started(tiny_engine())
    call, given = GOING_ON[stopped]

    async def wait(number):
        engine.call(lambda core: getattr(core, stopped)()).result()
        waiting = [asyncio.create_task(outputs_of(engine, request(rid=rid))) for rid in "ab"]
        while len(caplog.messages) < number:
            await asyncio.sleep(0)
        assert [engine.stats.num_sampled_tokens for _ in range(3)] == [40 * (number - 1)] * 3
        engine.call(lambda core: getattr(core, call)(*given))
        await asyncio.gather(*waiting)

    for number in (1, 2):
        asyncio.run(wait(number))
    expected = (
        f"the engine has computed nothing since NOON and waits for {call}(); open requests: 2"
    )
    assert caplog.messages == [expected] * 2


def test_jobs_that_arrive_do_not_postpone_the_warning(started, caplog, monkeypatch):
    monkeypatch.setattr(async_engine, "monotonic_s", itertools.count(step=20.0).__next__)
    engine = started(tiny_engine())
    engine.begin_weight_update()
    engine.call(lambda core: core.pause_generation())

    async def wait():
        waiting = asyncio.create_task(outputs_of(engine, request()))
        while not caplog.messages:
            assert engine.stats.num_steps == 0
            await asyncio.sleep(0)
        engine.close()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(wait())
    assert "waits for continue_generation() and end_weight_update()" in caplog.text


def test_closing_tells_everybody_and_ends_the_thread(started):
    before = set(threading.enumerate())
    engine = started(tiny_engine())
    (thread,) = set(threading.enumerate()) - before
    engine.call(lambda core: core.pause_generation("in_place")).result()

    async def close():
        waiting = [asyncio.create_task(outputs_of(engine, request(rid=rid))) for rid in "ab"]
        while engine.call(lambda core: core.num_waiting).result() < 2:
            await asyncio.sleep(0)
        engine.close()
        found = await asyncio.gather(
            *waiting, outputs_of(engine, request()), return_exceptions=True
        )
        assert ["is closed" in str(error) for error in found] == [True] * 3

    asyncio.run(close())
    assert not thread.is_alive()
    with pytest.raises(EngineStateError, match="is closed"):
        engine.call(lambda core: core.stats).result()
    engine.close()


def test_an_engine_without_references_ends_its_thread():
    before = set(threading.enumerate())
    engine = AsyncEngine(tiny_engine())
    (thread,) = set(threading.enumerate()) - before
    assert len(generated(engine, [request()])) == 1
    del engine
    gc.collect()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_its_thread_computes_as_the_one_that_made_it(started):
    engine = started(tiny_engine())
    seen = engine.call(lambda _: (torch.get_num_threads(), torch.is_grad_enabled())).result()
    assert seen == (torch.get_num_threads(), False)
