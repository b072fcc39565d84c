"""Promises 6, 7 and 9: a saved step continues as itself, tensors move as AdamW moves them, an export holds what was trained.

AdamW is written here once more, in float64 and from its paper (https://arxiv.org/abs/1711.05101), one tensor at a time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from zerogap.certify.finding import Finding
from zerogap.config import TrainConfig
from zerogap.models import CausalLM
from zerogap.train import NativeTrainer
from zerogap.types import Sample
from zerogap.weights import copy_weights, digest_weights, named_weights, trained_weights

LEARNING_RATE = 1e-3
"""Far above the spacing of fp32 numbers at the size of weights, so that a movement can be measured."""
LIMIT = 1e-3
"""Upper limit for norm(difference) / norm(movement) of a tensor, beyond what rounding of the new weight explains."""

_MASTER = "optimizer.master."
_NUM_STEPS = 2


def check_optimizer(
    trainer: NativeTrainer, config: TrainConfig, samples: Sequence[Sample]
) -> Finding:
    """Take two steps; compare the movement of each trained tensor with AdamW's. Restores the weights.

    Args:
        trainer: at step 0, with learning rate ``LEARNING_RATE``, no warm-up and one update a step.
        config: AdamW's betas, eps and weight decay, and the limit of the gradient's norm.
        samples: of one step, with a signal.
    """
    kept = _copied(trained_weights(trainer.model))
    gradients: list[Mapping[str, Tensor]] = []
    wrong: dict[str, str] = {}
    try:
        for number in range(1, _NUM_STEPS + 1):
            before = _copied(_weights(trainer))
            plan = trainer.plan(samples)
            gradients.append(_clipped(_copied(trainer.gradient(plan).tensors), config))
            trainer.step(plan)
            after = _weights(trainer)
            for name, old in before.items():
                history = [gradient[name] for gradient in gradients]
                expected = _adamw(old, history, config)
                if found := _difference(old, after[name], expected):
                    wrong.setdefault(name, f"{name} in step {number}: {found}")
    finally:
        _restore(trainer.model, kept)
    still = [name for name, gradient in gradients[0].items() if not gradient.any()]
    if wrong:
        first = "; ".join(list(wrong.values())[:3])
        cure = (
            "the optimizer does not do what the recipe says: do not train with it; please report it"
        )
        return Finding(is_kept=False, figure=f"{len(wrong)} of {len(kept)} tensors do not move as AdamW moves them: {first}", cure=cure)  # fmt: skip
    without = f"; {len(still)} had no gradient in the first step ({', '.join(still[:3])})" if still else ""  # fmt: skip
    return Finding(is_kept=True, figure=f"{_NUM_STEPS} steps, {len(kept)} tensors: each moves as AdamW in float64 moves it{without}")  # fmt: skip


def check_resume(make: Callable[[], NativeTrainer], samples: Sequence[Sample]) -> Finding:
    """Step, save, step; then load what was saved and step again. Restores the weights.

    Args:
        make: a trainer at step 0 with a learning rate above 0; each call another trainer of one model.
        samples: of one step, with a signal.
    """
    trainer = make()
    model = trainer.model
    kept = _copied(trained_weights(model))
    try:
        _step(trainer, samples)
        saved = _copied(trained_weights(model))
        with TemporaryDirectory() as folder:
            trainer.save(Path(folder))
            _step(trainer, samples)
            straight = _digests(trainer)
            del trainer
            resumed = make()
            _restore(model, saved)
            resumed.load(Path(folder))
        _step(resumed, samples)
        again = _digests(resumed)
        moved = digest_weights(trained_weights(model)).hex != digest_weights(saved).hex
    finally:
        _restore(model, kept)
    different = [what for what, digest in straight.items() if digest != again[what]]
    if different:
        cure = "a resumed run would go on as another run: do not resume it; please report it"
        return Finding(is_kept=False, figure=f"a step from the saved state differs from the uninterrupted step in: {', '.join(different)}", cure=cure)  # fmt: skip
    if not moved:
        return Finding(is_kept=False, figure="the step changed no weight, so nothing was compared", cure="certify weights that are finite and not all equal")  # fmt: skip
    return Finding(is_kept=True, figure="step, save, step; load, step: weights and optimizer state the same bits")  # fmt: skip


def check_trained_export(
    trainer: NativeTrainer,
    samples: Sequence[Sample],
    *,
    export: Callable[[Path], object],
    load: Callable[[Path], Mapping[str, Tensor]],
) -> Finding:
    """Take a step, export, load the export; compare every tensor. Restores the weights.

    Args:
        trainer: at step 0 with a learning rate above 0.
        samples: of one step, with a signal.
        export: writes the model to a folder.
        load: the weights of an exported folder, by name.
    """
    weights = named_weights(trainer.model)
    kept = _copied(trained_weights(trainer.model))
    before = digest_weights(weights).hex
    try:
        _step(trainer, samples)
        trained = digest_weights(weights)
        with TemporaryDirectory() as folder:
            export(Path(folder))
            exported = load(Path(folder))
        found = digest_weights(exported)
    finally:
        _restore(trainer.model, kept)
    if trained.hex == before:
        return Finding(is_kept=False, figure="the step changed no weight, so nothing was compared", cure="certify weights that are finite and not all equal")  # fmt: skip
    wrong = [f"{name} is not the trained one" for name in found.differences(trained)]
    if wrong:
        cure = "the export is another model than the one that was trained: do not use it; please report it"
        return Finding(is_kept=False, figure=f"export after a step: digest {found.hex[:12]}, trained {trained.hex[:12]}; {len(wrong)} of {len(weights)} tensors: {'; '.join(wrong[:3])}", cure=cure)  # fmt: skip
    return Finding(is_kept=True, figure=f"step, export, load: all {len(weights)} tensors the trained ones, digest {found.hex[:12]}")  # fmt: skip


def _step(trainer: NativeTrainer, samples: Sequence[Sample]) -> None:
    trainer.step(trainer.plan(samples))


def _weights(trainer: NativeTrainer) -> dict[str, Tensor]:
    """What the optimizer moves: each trained tensor in fp32, its master where it has one."""
    state = trainer.state_dict()
    return {
        name: state.get(_MASTER + name, weight)
        for name, weight in trained_weights(trainer.model).items()
    }


def _digests(trainer: NativeTrainer) -> dict[str, str]:
    state = {n: t for n, t in trainer.state_dict().items() if n.startswith("optimizer.")}
    return {
        "weights": digest_weights(trained_weights(trainer.model)).hex,
        "optimizer state": digest_weights(state).hex,
    }


def _clipped(gradient: dict[str, Tensor], config: TrainConfig) -> dict[str, Tensor]:
    norms = (torch.linalg.vector_norm(g, dtype=torch.float64).item() for g in gradient.values())
    if (norm := math.hypot(*norms)) > config.max_grad_norm:
        for tensor in gradient.values():
            tensor.mul_(config.max_grad_norm / norm)
    return gradient


def _adamw(old: Tensor, gradients: Sequence[Tensor], config: TrainConfig) -> Tensor:
    """The weight after the last of ``gradients``, as float64; ``old`` is the weight before it."""
    (beta1, beta2), number = config.betas, len(gradients)
    first = second = torch.zeros((), dtype=torch.float64, device=old.device)
    for gradient in gradients:
        g = gradient.double()
        first = beta1 * first + (1 - beta1) * g
        second = beta2 * second + (1 - beta2) * g.square()
    scale = (second / (1 - beta2**number)).sqrt() + config.eps
    decay = config.weight_decay if old.dim() > 1 else 0.0
    weight = old.double() * (1 - LEARNING_RATE * decay)
    return weight - LEARNING_RATE * (first / (1 - beta1**number)) / scale


def _difference(old: Tensor, new: Tensor, expected: Tensor) -> str:
    """What is wrong with a tensor's movement, or nothing."""
    movement = torch.linalg.vector_norm(expected - old.double()).item()
    error = torch.linalg.vector_norm(new.double() - expected).item()
    rounding = torch.finfo(torch.float32).eps * torch.linalg.vector_norm(expected).item()
    if error <= LIMIT * movement + rounding:
        return ""
    if torch.equal(old, new):
        return "it has not moved"
    moved = torch.linalg.vector_norm(new.double() - old.double()).item()
    return f"moved by {moved:.3g}, AdamW by {movement:.3g}, they differ by {error:.3g}"


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _restore(model: CausalLM, kept: Mapping[str, Tensor]) -> None:
    copy_weights(kept.items(), trained_weights(model))
