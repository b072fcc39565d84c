"""Replays a capsule: computes loss and gradient of its step again and compares them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from zerogap.capsule.answer import Answer, compute_answer
from zerogap.capsule.file import Capsule, Header, read_capsule
from zerogap.config import ModelSection
from zerogap.errors import CheckpointError
from zerogap.models import CausalLM, config_from_hf, config_to_hf
from zerogap.obs import Progress
from zerogap.run.machine import (
    apply_threads,
    code_differences,
    describe_environment,
    machine_differences,
)
from zerogap.run.policy import Policy, load_policy
from zerogap.run.trainers import build_trainer
from zerogap.weights import WeightDigest, copy_weights, digest_weights, named_weights

LOSS_TOLERANCE = 1e-5
"""Tolerance of the loss, relative to it or to 1, on another kind of machine, which adds log-probs in another order."""
NORM_TOLERANCE = 1e-3
"""Tolerance of a gradient's norm, relative to it: its terms cancel, so rounding is larger than in the loss."""
LEAST_SHARE = 1e-6
"""Gradients below this share of the global norm are mostly rounding, so their tolerance is relative to this share."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The replayed loss and gradient, and how they compare with the capsule's."""

    header: Header
    found: Answer
    machine_differences: tuple[str, ...]
    """If empty, the machines are of one kind and bits are compared; otherwise numbers, with tolerances."""
    code_differences: tuple[str, ...]
    """Differences in the version of zerogap; they do not change how results are compared."""
    other_weights: tuple[str, ...]
    """Weights that differ from those the capsule was made with."""

    @property
    def other_gradients(self) -> tuple[str, ...]:
        """Parameters whose gradient has different bits."""
        return _differences(self.header.answer.tensors, self.found.tensors)

    @property
    def far_gradients(self) -> tuple[str, ...]:
        """Parameters whose gradient's norm differs by more than rounding."""
        then, now = self.header.answer, self.found.norms
        least = LEAST_SHARE * then.grad_norm
        return tuple(
            name
            for name, norm in then.norms.items()
            if not abs(now[name] - norm) <= NORM_TOLERANCE * max(norm, least)
        )

    @property
    def is_loss_near(self) -> bool:
        """Whether the loss equals the capsule's within rounding."""
        then, near = self.header.answer.loss, LOSS_TOLERANCE
        return math.isclose(self.found.loss, then, rel_tol=near, abs_tol=near)

    @property
    def is_equal(self) -> bool:
        """Whether the results are as equal as these two machines promise: to the bit, or within rounding."""
        if self.machine_differences:
            return self.is_loss_near and not self.far_gradients
        then, now = self.header.answer, self.found
        has_same_numbers = (then.loss, then.grad_norm) == (now.loss, now.grad_norm)
        return has_same_numbers and not self.other_gradients


def replay_capsule(path: Path, *, model: str | None = None, quiet: bool = False) -> Replay:
    """Compute a capsule's loss and gradient on this machine.

    Args:
        path: the capsule.
        model: the recipe's model on this machine, replacing ``model.path``; None: as in the recipe. It is needed for
            weights that are not embedded, and for the initial policy if the loss refers to it.
        quiet: show no progress.

    Raises:
        CheckpointError: the file is not a capsule of this version, the model has another architecture, or ``model`` is
            given but not needed.
        ModelError: the model cannot be found or loaded.
    """
    capsule, progress = read_capsule(path), Progress(Console(stderr=True), is_quiet=quiet)
    header, config = capsule.header, capsule.config
    if model is not None and capsule.policy is not None and not config.algorithm.loads_reference:
        msg = f"--model {model} would not be used: {path} has the step's weights, and its algorithm needs no other model; leave --model out"
        raise CheckpointError(msg)
    # The same number of threads as then, unless the user sets one: sums keep their order.
    apply_threads(recorded=int(header.machine["threads"]))
    if model is not None:
        section = config.model.model_copy(update={"path": model, "init": None})
        config = config.model_copy(update={"model": section})
    with progress.phase("loading the model"):
        policy = _policy(capsule, config.model, seed=config.run.seed)
        if header.settings.is_exact:
            policy.probe()  # chooses the GEMM kernels, as in the run
        trainer = build_trainer(config, policy)
        trainer.load_state_dict({**trainer.state_dict(), **capsule.trainer_state})
    weights = digest_weights(named_weights(policy.model)).tensors
    found = compute_answer(
        trainer,
        capsule.samples,
        config=config,
        step=header.step,
        settings=header.settings,
        progress=progress,
    )
    here = describe_environment()
    return Replay(
        header=header,
        found=found,
        machine_differences=machine_differences(header.machine, here),
        code_differences=code_differences(header.machine, here),
        other_weights=_differences(header.weight_digests, weights),
    )


def _policy(capsule: Capsule, section: ModelSection, *, seed: int) -> Policy:
    """The embedded policy, or else the recipe's."""
    if (embedded := capsule.policy) is not None:
        architecture = config_from_hf(capsule.header.architecture)
        model = CausalLM(architecture, precision=section.dtype)
        copy_weights(embedded.weights.items(), named_weights(model))
        tokenizer = embedded.tokenizer
        return Policy(model=model, tokenizer=tokenizer, eos_token_ids=architecture.eos_token_ids)
    policy = load_policy(section, seed=seed)
    if config_to_hf(policy.model.config) != capsule.header.architecture:
        msg = f"{section.path or 'the recipe'}: this model does not have the capsule's architecture; pass --model with the recipe's model ({capsule.config.model.path})"
        raise CheckpointError(msg)
    return policy


def _differences(then: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    return WeightDigest(then).differences(WeightDigest(now))
