"""The charts of a report."""

from zerogap.obs import GAP_SOURCES, is_reward_part, metric
from zerogap.report.curves import Chart, draw_chart
from zerogap.report.data import RunData
from zerogap.report.numbers import plural
from zerogap.report.plot import Form, Series
from zerogap.report.scales import FLOAT32_EPSILON, ZERO_BAND, ZeroLogScale

_NUM_COLOURS = 5
"""Of the page's palette."""


def draw_charts(run: RunData) -> list[Chart]:
    """The charts that have at least one point, in reading order."""
    charts = [
        _reward(run),
        _reward_parts(run),
        _gap(run),
        *_sources(run),
        _speed(run),
        _time(run),
        *_single(run),
    ]
    return [chart for chart in charts if chart is not None]


def _reward(run: RunData) -> Chart | None:
    caption = "Mean reward of the step's valid samples, and of held-out prompts."
    training = _series(run, "reward/mean", "training", 1)
    return draw_chart(
        "Reward", caption, [training, _series(run, "eval/reward/mean", "held-out", 2, "points")]
    )


def _reward_parts(run: RunData) -> Chart | None:
    names = list(dict.fromkeys(n for entry in run.entries for n in entry if is_reward_part(n)))
    shown, others = names[:_NUM_COLOURS], names[_NUM_COLOURS:]
    rest = f" metrics.jsonl also has {', '.join(map(_part, others))}." if others else ""
    return draw_chart(
        "Parts of the reward",
        f"Mean of each part over the step's valid samples, without its weight.{rest}",
        [_series(run, name, _part(name), slot) for slot, name in enumerate(shown, start=1)],
    )


def _part(name: str) -> str:
    return name.removeprefix("reward/").removesuffix("/mean")


def _gap(run: RunData) -> Chart | None:
    largest = _series(run, "gap/total/max", "max", 3, "halo")
    mean = _series(run, "gap/total/mean", "mean", 1)
    return draw_chart(
        "Gap between trainer and engine",
        f"|trainer's - engine's log-prob| of audited tokens before any update, in nats{_audited(run)}. Logarithmic above the break; exact zeros below it.",
        [largest, mean],
        scale=ZeroLogScale.around(value for one in (largest, mean) for _, value in one.points),
        rules=[(FLOAT32_EPSILON, "float32 rounding at 1")],
        zero_band=ZERO_BAND,
    )


def _sources(run: RunData) -> list[Chart | None]:
    """Signed means, which add up, and beside them mean |difference|, which does not."""
    sizes = [
        _series(run, f"gap/{source}/open/mean", source, slot)
        for slot, source in enumerate(GAP_SOURCES, start=1)
    ]
    moved = [one for one in sizes if any(value for _, value in one.points)]
    if not moved:
        return [_all_zero(run, sizes)]
    zero = ", ".join(one.label for one in sizes if one.points and one not in moved)
    rest = f" Exactly 0 at every step: {zero}." if zero else ""
    signed = [
        _series(run, f"gap/{one.label}/open/signed_mean", one.label, one.slot, "stack")
        for one in moved
    ]
    total = _series(run, "gap/total/signed_mean", "sum", len(GAP_SOURCES) + 1)
    return [
        draw_chart(
            "Gap by source",
            f"Mean signed difference, trainer's minus engine's log-prob, from each source that no replay closes, in nats{_audited(run)}. "
            f"Stacked: signed means add up to the sum, which can be near 0 while tokens differ.{rest}",
            [*signed, total] if any(one.points for one in signed) else [],
        ),
        draw_chart(
            "Size of each source",
            f"Mean |difference| from each source, in nats{_audited(run)}. These do not add up: differences of opposite signs cancel in a token. "
            "Logarithmic above the break; exact zeros below it.",
            moved,
            scale=ZeroLogScale.around(value for one in moved for _, value in one.points),
            zero_band=ZERO_BAND,
        ),
    ]


def _all_zero(run: RunData, sizes: list[Series]) -> Chart | None:
    # Bars of height 0 are invisible: five exact zeros are drawn as one line in their band.
    zeros = max((one.points for one in sizes), key=len)
    return draw_chart(
        "Gap by source",
        f"Mean |difference| from each source that no replay closes, in nats{_audited(run)}. All five are exactly 0 at every step.",
        [Series("all five", 1, zeros)],
        scale=ZeroLogScale.around([]),
        zero_band=ZERO_BAND,
    )


def _audited(run: RunData) -> str:
    """How much was measured, for a caption."""
    tokens, samples = run.total("gap/num_tokens"), run.total("gap/num_samples")
    if not (tokens and samples):
        return ""
    return f", over {plural(tokens, 'token')} of {plural(samples, 'sample')} in {plural(len(run.points('gap/num_tokens')), 'step')}"


def _speed(run: RunData) -> Chart | None:
    caption = "Tokens per second: sampled during generation, and trained rows during training."
    engine = _series(run, "engine/tokens_per_s", "generate", 1)
    return draw_chart("Speed", caption, [engine, _series(run, "train/tokens_per_s", "train", 2)])


def _time(run: RunData) -> Chart | None:
    parts = [
        _series(run, "step/generate_s", "generate", 1, "stack"),
        _series(run, "step/train_s", "train", 2, "stack"),
        _series(run, "step/evaluate_s", "evaluate", 4, "stack"),
    ]
    named = {step: 0.0 for step, _ in run.points("step/time_s")}
    for step, value in (point for part in parts for point in part.points):
        named[step] = named.get(step, 0.0) + value
    # Clocks are read in sequence, so the parts may exceed the whole by a rounding error.
    rest = [(step, max(0.0, whole - named[step])) for step, whole in run.points("step/time_s")]
    caption = "Seconds per step; rest is grading, auditing, publishing, checkpoints and files."
    return draw_chart("Time per step", caption, [*parts, Series("rest", 5, rest, "stack")])


def _single(run: RunData) -> list[Chart | None]:
    longest = _series(run, "rollout/completion_len/max", "longest", 3)
    length = [longest, _series(run, "rollout/completion_len/mean", "mean", 1)]
    names = {
        "Entropy": "policy/entropy",
        "Gradient norm": "train/grad_norm",
        "Clip fraction": "policy/clip_fraction",
    }
    entropy, norm, clipped = (
        draw_chart(title, f"{_sentence(name)}", [_series(run, name, name, 1)])
        for title, name in names.items()
    )
    return [
        draw_chart("Completion length", "Sampled tokens per sample.", length),
        entropy,
        norm,
        clipped,
    ]


def _series(run: RunData, name: str, label: str, slot: int, form: Form = "line") -> Series:
    return Series(label, slot, run.points(name), form)


def _sentence(name: str) -> str:
    description = metric(name).description
    return f"{description[0].upper()}{description[1:]}."
