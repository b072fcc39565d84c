"""Every pair of options of two tables either trains or is refused with a reason, and random compositions keep the promises."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.examples import examples
from helpers.loss_cases import as_reference_answer, hinted, with_values
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT, GRADIENT_NORM
from helpers.train_batches import VOCAB, make_groups, rewarded, train_on
from hypothesis import given, settings
from hypothesis import strategies as st

from zerogap.config import RunConfig
from zerogap.config.load import load_config
from zerogap.errors import ConfigError
from zerogap.obs import read_jsonl
from zerogap.run import train
from zerogap.train import NativeTrainer, Teacher, TrainMetrics
from zerogap.train import critic as critic_module
from zerogap.train import objective as objective_module
from zerogap.types import Sample

ROOT = Path(__file__).parents[2]
SMALL = {
    "model.init.num_layers": "1",
    "model.init.hidden_size": "32",
    "model.init.intermediate_size": "48",
    "model.init.num_heads": "4",
    "model.init.head_dim": "16",
    "rollout.prompts_per_step": "2",
    "rollout.group_size": "4",
    "run.steps": "2",
    "train.warmup_steps": "0",
    "train.learning_rate": "1e-3",
    "train.micro_batch_tokens": "4096",
    "evaluate.every": "0",
}
Option = tuple[str, ...]
"""Lines ``key=value`` of a recipe."""
OWN_LOSS = ("loss.kind=import", "loss.function=own_algorithm:squared_ratio", "loss.params.strength=0.5")  # fmt: skip
LEVELS = ("token", "sequence", "geometric")
MASKS = {
    "token": ("0.75", "1.4"),
    "sequence": ("0.0", "3.0"),
    "geometric": ("0.9", "1.1"),
}
TABLES: dict[str, list[Option]] = {
    "loss": [
        *[(f"loss.kind={kind}",) for kind in ("clip", "cispo", "reinforce", "sapo", "dppo", "drpo", "sft", "dpo")],
        ("loss.kind=clip", "loss.dual_clip=2.0"),
        ("loss.kind=dppo", "loss.divergence=kl"),
        OWN_LOSS,
    ],
    "ratio": [(f"loss.ratio={level}",) for level in LEVELS],
    "denominator": [
        *[(f"loss.denominator={kind}",) for kind in ("token", "sample", "group", "rollout")],
        ("loss.denominator=constant", "loss.constant_denominator=8"),
    ],
    "advantage": [
        *[("advantage.kind=group", f"advantage.std={std}") for std in ("group", "batch", "batch_advantage", "none")],
        *[("advantage.kind=leave_one_out", f"advantage.std={std}") for std in ("none", "batch")],
        *[(f"advantage.kind={kind}",) for kind in ("maxrl", "return", "token_baseline", "critic", "none")],
        ("advantage.kind=return", "advantage.std=batch", "advantage.baseline=group"),
        ("advantage.kind=critic", "advantage.std=none", "advantage.gae_lambda=0.9"),
        ("advantage.kind=import", "advantage.function=own_algorithm:rank_in_group"),
    ],
    "kl": [
        (f"kl.kind={kind}", "kl.coefficient=0.1", f"kl.place={place}")
        for kind, place in itertools.product(("k1", "k2", "k3"), ("loss", "reward"))
    ]
    + [("kl.kind=k3", "kl.coefficient=0.1", "kl.refresh.every=1")],
    "entropy": [("entropy.coefficient=0.01",), ("entropy.top_quantile=0.5",)],
    "teacher": [
        ("teacher.path=t",),
        ("teacher.path=t", "teacher.estimator=top_k", "teacher.top_k=4"),
        ("teacher.path=t", "teacher.estimator=top_k", "teacher.top_k=4", "teacher.direction=forward"),
        ("teacher.hint.kind=answer",),
        ("teacher.hint.kind=success", "teacher.estimator=top_k", "teacher.top_k=4", "teacher.refresh.every=1"),
    ],
    "dynamic_sampling": [
        ("sampling_policy.dynamic_sampling.max_rounds=2",),
        ("sampling_policy.dynamic_sampling.max_rounds=2", "sampling_policy.dynamic_sampling.signal=accuracy"),
    ],
    "overlong": [("sampling_policy.overlong.buffer_tokens=2",)],
    "truncated": [("sampling_policy.truncated=mask",)],
    "weight": [
        *[(f"corrections.weight.level={level}",) for level in LEVELS],
        ("corrections.weight.kind=clip", "corrections.weight.low=0.5"),
        ("corrections.weight.normalize=true",),
    ],
    "mask": [
        *[
            (f"corrections.mask.level={level}", f"corrections.mask.low={low}", f"corrections.mask.high={high}")
            for level, (low, high) in MASKS.items()
        ],
        ("corrections.mask.kind=k3", "corrections.mask.high=0.05"),
    ],
    "acceptance": [("acceptance.tolerance=10.0",)],
    "veto": [("corrections.veto=0.6",)],
    "off_policy": [("corrections.off_policy_kl=0.02",)],
    "old_log_probs": [("train.old_log_probs=rollout",)],
    "updates": [("train.updates_per_step=2",), ("train.epochs=2",)],
}  # fmt: skip
PAIRS = [
    pair
    for one, other in itertools.combinations(TABLES, 2)
    for pair in itertools.product(TABLES[one], TABLES[other])
]
QUICK = PAIRS[9::20]
"""With this start and stride each option stays; the test below says if not."""
REFUSAL = re.compile(r"[a-z_.]+( = .+?|, .+?| \(from .+?\))?: .+; (remove|set|choose) .+")
"""Keys, why they cannot work, what to do."""


@pytest.fixture(autouse=True)
def _own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


def load(*options: Option, **more: str) -> RunConfig:
    """The recipe of these options, on the tiny one."""
    values = dict(SMALL) | dict(line.split("=", 1) for option in options for line in option)
    values |= {key.replace("__", "."): value for key, value in more.items()}
    flags = [part for key, value in values.items() for part in (f"--{key}", value)]
    return load_config([ROOT / "recipes" / "tiny.toml"], flags).config


def policy(seed: int = 0):
    return tiny_model("qwen3", seed=seed, num_layers=1)


def trainer_of(config: RunConfig) -> NativeTrainer:
    algorithm = config.algorithm
    return with_values(
        NativeTrainer(
            policy(),
            config.train,
            algorithm,
            total_steps=config.run.steps,
            reference=policy(1) if algorithm.needs_reference else None,
            teacher=Teacher(policy(2), vocab_limit=VOCAB) if algorithm.loads_teacher else None,
        )
    )


@cache
def drawn(noise: float) -> tuple[Sample, ...]:
    """Two groups of four with rewards of 0 and 1, whose engine's log-probs are this many nats from the policy's."""
    samples = rewarded(make_groups(2, 4, seed=3), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    scored = NativeTrainer(policy(), load().train, total_steps=1).score(samples)
    rng = np.random.default_rng(4)
    return tuple(
        replace(s, rollout_log_probs=np.minimum(x + rng.normal(0, 1, len(s)) * noise, 0.0).astype(np.float32))
        for s, x in zip(samples, scored, strict=True)
    )  # fmt: skip


def samples_for(config: RunConfig, noise: float = 0.2) -> list[Sample]:
    if config.loss.trains_on_completions:
        return hinted(drawn(noise)) if config.algorithm.has_hints else list(drawn(noise))
    return [as_reference_answer(s, reward=float(i % 4 == 0)) for i, s in enumerate(drawn(noise))]


def check_trains(config: RunConfig) -> None:
    trainer = trainer_of(config)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for _ in range(2):
        metrics = train_on(trainer, samples_for(config))
        assert math.isfinite(metrics.loss)
        assert math.isfinite(metrics.grad_norm)
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    assert any((p != before[name]).any() for name, p in trainer.model.named_parameters())


def check_refusal(error: ConfigError, options: Sequence[Option]) -> list[Option]:
    """Each line names two of the options or one that is impossible alone, says why, and what to do; those of the first line."""
    title, *lines = str(error).splitlines()
    assert title == f"the configuration has {len(lines)} problem{'s' * (len(lines) > 1)}:"
    assert lines
    for line in map(str.strip, lines):
        assert REFUSAL.fullmatch(line), line
        found = named(line, options)
        assert len(found) > 1 or any(line in refusal_of(option) for option in found), line
    return named(lines[0].strip(), options)


def named(line: str, options: Sequence[Option]) -> list[Option]:
    """Options of which the line names a key or the table; a table of one word only where the line begins."""
    words = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)+", line)) | set(re.findall(r"^([a-z_]+):", line))
    return [
        option
        for option in options
        if any(
            f"{given.partition('=')[0]}.".startswith(f"{word}.")
            for given in option
            for word in words
        )
    ]


@cache
def refusal_of(option: Option) -> str:
    """Why an option is impossible without another one; "" where it is not."""
    try:
        load(option)
    except ConfigError as error:
        return str(error)
    return ""


def check_pairs(pairs: Sequence[tuple[Option, Option]]) -> tuple[int, int]:
    """(pairs that trained, pairs that were refused)."""
    num_refused, failures = 0, []
    for pair in pairs:
        try:
            config = load(*pair)
        except ConfigError as error:
            check_refusal(error, pair)
            num_refused += 1
            continue
        try:
            check_trains(config)
        except Exception as error:  # noqa: BLE001 - all pairs are told, not the first
            failures.append(f"{pair}: {type(error).__name__}: {error}")
    assert not failures, f"{len(failures)} of {len(pairs)} pairs:\n" + "\n".join(failures)
    return len(pairs) - num_refused, num_refused


def test_a_share_of_the_pairs_trains_or_is_refused_with_a_reason():
    kept = set(itertools.chain.from_iterable(QUICK))
    assert kept == set(itertools.chain.from_iterable(TABLES.values()))
    num_trained, num_refused = check_pairs(QUICK)
    assert num_trained > 4 * num_refused > 0


PAIR = (("advantage.kind=none",), ("kl.kind=k3", "kl.coefficient=0.1", "kl.place=reward"))
NO_REASONS = {
    "no key that was given": "rollout.lag = 1: samples are old; set lag = 0",
    "one of two keys": 'kl.place = "reward": rewards train nothing; set kl.place = "loss"',
    "a word that is a table's name too": 'kl.place = "reward": no advantage trains; set kl.place = "loss"',
    "no remedy": 'kl.place = "reward": advantage.kind = "none" trains nothing',
    "a remedy that is none": 'kl.place = "reward": advantage.kind = "none" trains nothing; sorry',
    "no reason": "kl.place, advantage.kind; set kl.place = loss",
    "nothing": "",
}


@pytest.mark.parametrize("lacks", NO_REASONS)
def test_a_refusal_without_a_reason_would_be_noticed(lacks):
    with pytest.raises(ConfigError) as refusal:
        load(*PAIR)
    check_refusal(refusal.value, PAIR)
    text = f"the configuration has 1 problem:\n  {NO_REASONS[lacks]}".rstrip()
    with planted_fault(lacks):
        check_refusal(ConfigError(text), PAIR)


def test_a_pair_that_does_not_train_would_be_noticed(monkeypatch):
    pair = (("loss.kind=cispo",), ("entropy.coefficient=0.01",))
    check_pairs([pair])
    with planted_fault("the weights stay"), monkeypatch.context() as patched:
        patched.setitem(SMALL, "train.learning_rate", "0.0")
        check_pairs([pair])
    with planted_fault("an exception"), monkeypatch.context() as patched:
        patched.setattr(NativeTrainer, "step", lambda *_, **__: 1 / 0)
        check_pairs([pair])


@pytest.mark.slow
def test_every_pair_trains_or_is_refused_with_a_reason():
    num_trained, num_refused = check_pairs(PAIRS)
    assert num_trained > 4 * num_refused > 0


RUNS = [
    pair
    for option in (*TABLES["dynamic_sampling"], *TABLES["overlong"])
    for pair in ((option, ("loss.kind=gspo",)), (option, ("advantage.kind=critic",)))
]
"""Without truncated = "mask": this model's completions all reach the limit, so no sample would train. The recipe
compositions/cispo_masked covers it in test_loss_recipes."""


@pytest.mark.parametrize("pair", RUNS, ids=lambda pair: pair[0][-1] + " " + pair[1][0])
def test_a_sampling_policy_trains_through_a_whole_run(pair, tmp_path):
    train(load(*pair, run__dir=str(tmp_path / "run")), quiet=True)
    steps = [line for line in read_jsonl(tmp_path / "run" / "metrics.jsonl") if line["step"] > 0]
    assert [line["step"] for line in steps] == [1, 2]
    assert all(math.isfinite(line["train/loss"]) for line in steps)


# ------------------------------------------------------------ random compositions

COMPOSITIONS = st.fixed_dictionaries(
    {}, optional={table: st.sampled_from(options) for table, options in TABLES.items()}
).map(lambda chosen: tuple(chosen.values()))


def composed(options: Sequence[Option]) -> RunConfig:
    """The recipe of the options, without those that a refusal names: the last of its first line, until nothing is refused."""
    options = list(options)
    while True:
        try:
            return load(*options)
        except ConfigError as error:
            options.remove(check_refusal(error, options)[-1])


def gradients(config: RunConfig, noise: float, **settings: object) -> tuple[dict, TrainMetrics]:
    """(gradient by name, metrics) of one step that changes nothing."""
    settings = {"learning_rate": 0.0, "max_grad_norm": 1e9, **settings}
    trainer = trainer_of(
        config.model_copy(update={"train": config.train.model_copy(update=settings)})
    )
    metrics = train_on(trainer, samples_for(config, noise))
    return dict(_gradients(trainer)), metrics


def _gradients(trainer: NativeTrainer) -> Iterator[tuple[str, object]]:
    critic = () if trainer.critic is None else trainer.critic.model.named_parameters("critic")
    for name, p in (*trainer.model.named_parameters(), *critic):
        if p.grad is not None:
            yield name, p.grad


def promised(options: Sequence[Option]) -> None:
    config = composed(options)
    check_layouts(config)
    if config.algorithm.has_policy_ratio:
        check_ratios(config)


def check_layouts(config: RunConfig) -> None:
    """One gradient, and the log-probs' bits."""
    gradient, metrics = gradients(config, 0.2)
    for layout in ({"micro_batch_tokens": 1, "share_prompts": False}, {"micro_batch_tokens": 40}):
        other, other_metrics = gradients(config, 0.2, **layout)
        EXACT.check(list(other_metrics.old_log_probs), list(metrics.old_log_probs))
        GRADIENT_NORM.check(other, gradient)


def check_ratios(config: RunConfig) -> None:
    """The weights stay, so the ratio to the trainer's log-probs is 1 for any samples, and to the engine's if it agrees."""
    _, metrics = gradients(config, 0.2, old_log_probs="trainer")
    assert (metrics.policy.ratio_min, metrics.policy.ratio_max) == (1.0, 1.0)
    assert metrics.policy.clip_fraction == 0.0 or config.loss.kind in ("dppo", "drpo")
    _, metrics = gradients(config, 0.0)
    assert (metrics.policy.ratio_min, metrics.policy.ratio_max) == (1.0, 1.0)
    assert metrics.policy.clip_fraction == 0.0


FULL = (
    ("loss.kind=clip", "loss.dual_clip=2.0"),
    ("advantage.kind=critic",),
    ("kl.kind=k3", "kl.coefficient=0.1", "kl.place=loss"),
    ("entropy.coefficient=0.01",),
)


@pytest.mark.parametrize("module", [objective_module, critic_module])
def test_a_denominator_of_a_micro_batch_would_be_noticed_in_a_composition(module, monkeypatch):
    check_layouts(composed(FULL))
    honest = module.reduce_loss

    def alone(numerator_T, denominator_T, keep_T, **weights):
        return honest(numerator_T, denominator_T * 0 + len(keep_T), keep_T, **weights)

    monkeypatch.setattr(module, "reduce_loss", alone)
    with planted_fault("each micro-batch divides by its own tokens"):
        check_layouts(composed(FULL))


@pytest.mark.parametrize(
    "tensor", ["layers.0.k_norm.weight", "critic.trunk.layers.0.k_norm.weight"]
)
def test_a_small_tensors_gradient_that_depends_on_the_layout_would_be_noticed(tensor, monkeypatch):
    honest = gradients

    def off(config, noise, **settings):
        found, metrics = honest(config, noise, **settings)
        factor = 1 + 2e-6 * (settings.get("micro_batch_tokens") == 40)
        return found | {tensor: found[tensor] * factor}, metrics

    monkeypatch.setitem(globals(), "gradients", off)
    with planted_fault("2e-6 of one tensor"):
        check_layouts(composed(FULL))


def test_a_weight_that_moves_would_be_noticed_in_the_ratios(monkeypatch):
    honest = gradients
    monkeypatch.setitem(
        globals(),
        "gradients",
        lambda *which, **settings: honest(*which, **settings, learning_rate=1e-7),
    )
    config = composed((*FULL, ("train.epochs=2",)))
    with planted_fault("a second update by weights that moved"):
        check_ratios(config)


@settings(max_examples=examples(10))
@given(COMPOSITIONS)
def test_a_random_composition_has_one_gradient_in_all_layouts_and_ratios_of_1_at_step_zero(options):
    promised(options)
