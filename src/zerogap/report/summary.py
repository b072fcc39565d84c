"""The run in sentences and key numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from zerogap.obs import format_duration
from zerogap.report.data import RunData
from zerogap.report.numbers import format_bytes, format_number, plural
from zerogap.types import Outcome


@dataclass(frozen=True)
class Tile:
    """A key number."""

    label: str
    value: str
    note: str
    unit: str = ""
    is_zero: bool = False
    """Whether the gap is exactly 0; it is then drawn in the colour of exact zeros."""


def describe_outcome(run: RunData) -> list[str]:
    """Sentences on the reward, the gap, failed samples, and whether the run is finished."""
    if not run.entries:
        return ["No step has been recorded yet: the run was stopped, or has just begun."]
    return [
        _reward_sentence(run),
        *_gap_sentence(run),
        *_samples_sentence(run),
        *_unfinished_sentence(run),
    ]


def tiles(run: RunData) -> list[Tile]:
    """Tiles for the measured numbers."""
    return [
        *_reward_tile(run),
        *_gap_tile(run),
        _steps_tile(run),
        *_speed_tiles(run),
        *_memory_tile(run),
    ]


def _reward_sentence(run: RunData) -> str:
    held_out, training = run.points("eval/reward/mean"), run.points("reward/mean")
    length = f"over {plural(run.num_steps, 'step')} in {format_duration(_seconds(run))}"
    if len(held_out) > 1:
        return f"Held-out reward {_change(held_out)} {length}."
    if held_out and training:
        once = f"Held-out reward was {format_number(held_out[0][1])} at step {held_out[0][0]} and was measured once"
        return f"{once}; training reward {_change(training)} {length}."
    if held_out:
        return f"Held-out reward was {format_number(held_out[0][1])} before the first step."
    if training:
        return f"Training reward {_change(training)} {length}; nothing held out was evaluated."
    return f"No reward was recorded {length}."


def _change(points: Sequence[tuple[int, float]]) -> str:
    (_, before), (_, after) = points[0], points[-1]
    first, last = format_number(before), format_number(after)
    if len(points) == 1:
        return f"was {first}"
    if first == last:
        return f"stayed at {first}"
    return f"{'rose' if after > before else 'fell'} from {first} to {last}"


def _gap_sentence(run: RunData) -> Iterator[str]:
    points = run.points("gap/total/max")
    if not points:
        return
    samples = run.total("gap/num_samples")
    of = f" of {plural(samples, 'sample')}" if samples else ""
    tokens = f"{run.total('gap/num_tokens'):,.0f} audited tokens{of}"
    step, largest = _largest_gap(run)
    if largest == 0:
        where = (
            "every step"
            if len(points) == run.num_steps
            else f"each of the {plural(len(points), 'step')} that measured it"
        )
        yield f"Trainer and engine gave each of {tokens} the same log-prob: the gap was 0.0 at {where}."
    else:
        zeros = sum(1 for _, value in points if value == 0)
        yield f"The largest gap between trainer and engine was {format_number(largest)} nats, at step {step}, among {tokens}; it was exactly 0 at {zeros} of {plural(len(points), 'step')}."


def _samples_sentence(run: RunData) -> Iterator[str]:
    drawn = run.total("rollout/num_samples")
    failed = sum(run.total(f"outcome/{kind}") for kind in Outcome if not kind.is_valid)
    if drawn and failed:
        yield f"{failed:,.0f} of {plural(drawn, 'sample')} failed and did not train."


def _unfinished_sentence(run: RunData) -> Iterator[str]:
    planned = run.num_planned_steps
    if planned is not None and run.num_steps < planned:
        yield f"{run.num_steps:,} of {plural(planned, 'step')} were recorded: the run was stopped, or is not finished."


def _reward_tile(run: RunData) -> Iterator[Tile]:
    if points := run.points("eval/reward/mean"):
        values = [format_number(value) for _, value in (points[0], points[-1])[: len(points)]]
        where = " → ".join(str(step) for step, _ in (points[0], points[-1])[: len(points)])
        prompts = run.points("eval/num_prompts")
        over = f", {plural(prompts[-1][1], 'prompt')}" if prompts else ""
        yield Tile("Held-out reward", " → ".join(values), f"step {where}{over}")


def _gap_tile(run: RunData) -> Iterator[Tile]:
    if run.points("gap/total/max"):
        step, largest = _largest_gap(run)
        tokens = f"of {plural(run.total('gap/num_tokens'), 'token')}"
        if largest == 0:
            yield Tile("Largest gap", "0.0", f"{tokens}, in all steps", "nats", is_zero=True)
        else:
            yield Tile("Largest gap", format_number(largest), f"{tokens}, at step {step}", "nats")


def _steps_tile(run: RunData) -> Tile:
    planned = run.num_planned_steps
    of = "" if planned is None else f" of {planned:,}"
    return Tile("Steps", f"{run.num_steps:,}{of}", f"in {format_duration(_seconds(run))}")


def _speed_tiles(run: RunData) -> Iterator[Tile]:
    for name, label in (("engine/tokens_per_s", "Generation"), ("train/tokens_per_s", "Training")):
        if rates := [rate for _, rate in run.points(name)]:
            yield Tile(label, format_number(median(rates)), "median of steps", "tokens/s")


def _memory_tile(run: RunData) -> Iterator[Tile]:
    if peaks := [peak for _, peak in run.points("memory/peak_bytes")]:
        yield Tile("Peak memory", format_bytes(max(peaks)), "resident, this process")


def _largest_gap(run: RunData) -> tuple[int, float]:
    return max(run.points("gap/total/max"), key=lambda point: point[1])


def _seconds(run: RunData) -> float:
    return run.total("step/time_s")
