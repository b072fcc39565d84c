"""Two engines and a trainer at the same time in one process: each computes the same bits as alone."""

from concurrent.futures import ThreadPoolExecutor

from helpers.engine_samples import requests, samples_of, trainer_of
from helpers.generated import generated
from helpers.tiny_engine import reported, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import train_on

from zerogap.engine import AsyncEngine

ROUNDS = 4


def engine_of(seed: int):
    return tiny_engine(tiny_model("qwen3", seed=seed))


def rollouts(engine):
    """Enough rounds that every shape of a decode step is captured while others compute."""
    return [reported(generated(engine, requests(1.0))) for _ in range(ROUNDS)]


def train(samples):
    model = tiny_model("llama", seed=3)
    trainer = trainer_of(model)
    log_probs = [train_on(trainer, samples).old_log_probs for _ in range(ROUNDS)]
    return log_probs, dict(model.named_parameters())


def test_two_engines_and_a_trainer_do_not_touch_each_other():
    samples = samples_of(tiny_engine(tiny_model("llama", seed=3)).generate(requests(1.0)), 1.0)
    trained = train(samples)
    alone = []
    for seed in (1, 2):
        with AsyncEngine(engine_of(seed)) as engine:
            alone.append(rollouts(engine))
    cores = [engine_of(seed) for seed in (1, 2)]
    with AsyncEngine(cores[0]) as first, AsyncEngine(cores[1]) as second, ThreadPoolExecutor(3) as threads:  # fmt: skip
        training = threads.submit(train, samples)
        drawing = [threads.submit(rollouts, engine) for engine in (first, second)]
        EXACT.check([one.result() for one in drawing], alone)
        EXACT.check(training.result(), trained)
    for core in cores:
        core.check_integrity()
        if core._runner._graphs.why_not is None:
            assert core._runner._graphs.num_repeated > 10
