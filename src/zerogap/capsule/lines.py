"""Describes capsules and replays in lines for a terminal."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from zerogap.capsule.file import Capsule
from zerogap.capsule.replay import LOSS_TOLERANCE, NORM_TOLERANCE, Replay

_NUM_NAMED = 5


def agrees_with_run(capsule: Capsule) -> bool | None:
    """Whether the run recorded the same loss and gradient norm; None if it recorded none for the first update alone."""
    answer, then = capsule.header.answer, capsule.metrics
    if answer.num_updates > 1 or not {"train/loss", "train/grad_norm"} <= then.keys():
        return None
    return (then["train/loss"], then["train/grad_norm"]) == (answer.loss, answer.grad_norm)


def describe_capsule(capsule: Capsule, path: Path) -> Iterator[str]:
    """Contents of the capsule, its loss and gradient norm."""
    header = capsule.header
    yield f"{path}: step {header.step} of {header.run}, {path.stat().st_size / 1e6:,.1f} MB"
    if capsule.policy is None:
        named = capsule.config.model.path or "[model.init], seeded"
        yield f"weights: only digests, of the recipe's model ({named}); --with-weights embeds them"
    else:
        proof = ", fingerprint as recorded" if header.is_proven else ""
        yield f"weights: version {header.weight_version}, embedded with the tokenizer; from {header.origin}{proof}"
    yield f"loss {header.answer.loss!r}, gradient norm {header.answer.grad_norm!r}{_of_updates(header.answer.num_updates)}"
    yield {
        True: "the run recorded the same loss and gradient norm",
        False: "NOTE: the run recorded another loss or gradient norm: the machine, the threads or the code differ",
        None: "nothing to compare with: the run recorded no loss of this update alone",
    }[agrees_with_run(capsule)]


def describe_replay(replay: Replay) -> Iterator[str]:
    """What was compared, and what differs."""
    then, now, header = replay.header.answer, replay.found, replay.header
    yield f"step {header.step} of {header.run}, weights of version {header.weight_version}{_of_updates(then.num_updates)}"
    yield from (f"code differs: {difference}" for difference in replay.code_differences)
    if replay.other_weights:
        yield f"weights: {_named(replay.other_weights)} of {len(header.weight_digests)} differ from the capsule's"
    if replay.machine_differences:
        yield (
            f"this machine is of another kind ({'; '.join(replay.machine_differences)}), where equal bits are not promised, "
            f"so the loss may differ by {LOSS_TOLERANCE:g} and the norm of each gradient by {NORM_TOLERANCE:g}"
        )
    yield f"loss           {then.loss!r} in the capsule, {now.loss!r} here"
    yield f"gradient norm  {then.grad_norm!r} in the capsule, {now.grad_norm!r} here"
    yield f"gradient       {then.digest} in the capsule, {now.digest} here, {len(then.tensors)} tensors"
    yield _verdict(replay)


def _verdict(replay: Replay) -> str:
    if replay.machine_differences:
        if not replay.other_gradients and replay.found.loss == replay.header.answer.loss:
            return "the same bits, though none were promised"
        if replay.is_equal:
            return "equal within rounding"
        far = _named(replay.far_gradients) if replay.far_gradients else "no gradient"
        loss = "" if replay.is_loss_near else "the loss and "
        return f"NOT equal within rounding: {loss}{far} differ"
    if replay.is_equal:
        return "the same bits"
    if not replay.other_gradients:
        return "NOT the same bits: the loss differs, the gradients do not"
    return f"NOT the same bits: the gradients of {_named(replay.other_gradients)} differ"


def _of_updates(num_updates: int) -> str:
    return f"; of the first of {num_updates} updates" if num_updates > 1 else ""


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NUM_NAMED
    listed = ", ".join(names[:_NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({listed})"
