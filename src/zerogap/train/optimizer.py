"""AdamW over a model's trained parameters; its state is plain tensors.

Parameters that do not require a gradient get neither gradient nor state. Gradients are read from ``.grad``, so hooks may
replace them: ``zero_grad`` zeroes existing ones in place, creates missing ones, and keeps no reference. Moments are fp32.
Moments and parameters are updated in place, so an engine that shares the parameters has the new weights at once.

Parameters that hold bf16 values get masters: fp32 copies that take the updates and are rounded into the parameters.
Above 1, bf16 values are 0.0078 apart: an update of 1e-6 would be rounded away every time.

AdamW: https://arxiv.org/abs/1711.05101. Matrices decay; norms and biases (one dimension) do not.
"""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from zerogap.errors import CheckpointError, ConfigError, NumericsError
from zerogap.kernels import round_bf16, round_bf16_, to_host

_NORM_BLOCK = 256
Schedule = Literal["constant", "linear", "cosine"]


class Optimizer:
    """AdamW with global-norm clipping that refuses a gradient that is not finite."""

    def __init__(
        self,
        model: nn.Module,
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        max_grad_norm: float,
        keeps_masters: bool = False,
    ) -> None:
        """An optimizer at update 0.

        Args:
            model: its parameters that require a gradient are trained; that must not change later.
            betas: of AdamW.
            eps: of AdamW.
            weight_decay: of matrices.
            max_grad_norm: longer gradients are scaled down to it.
            keeps_masters: whether the parameters hold bf16 values, and so need masters.

        Raises:
            ConfigError: no parameter requires a gradient.
        """
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            msg = "all parameters of the model are frozen: there is nothing to train; call requires_grad_(True) on those to train"
            raise ConfigError(msg)
        self._max_grad_norm = max_grad_norm
        self._num_updates = 0
        self._betas, self._eps, self._weight_decay = betas, eps, weight_decay
        # Made here, not at the first update, so that the state always has all its entries.
        self._exp_avg = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._exp_avg_sq = {name: torch.zeros_like(p) for name, p in self._parameters.items()}
        self._masters = {
            name: p.detach().clone() for name, p in self._parameters.items() if keeps_masters
        }

    def zero_grad(self) -> None:
        """Begin an update: every gradient exists and is 0."""
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    @torch.no_grad()
    def update(self, learning_rate: float) -> float:
        """Clip and apply the accumulated gradient; returns its norm before clipping.

        A gradient of exactly 0 changes nothing: no sample has a signal, and momentum and decay would move the weights without one.

        Raises:
            NumericsError: the gradient is not finite. No parameter and no moment has changed.
        """
        norm = self.grad_norm()
        if norm == 0:
            return norm
        if norm > self._max_grad_norm:
            for gradient in self.gradients().values():
                gradient.mul_(self._max_grad_norm / norm)
        self._num_updates += 1
        matrices = [name for name, p in self._parameters.items() if p.dim() > 1]
        vectors = [name for name, p in self._parameters.items() if p.dim() <= 1]
        self._apply(matrices, learning_rate, self._weight_decay)
        self._apply(vectors, learning_rate, 0.0)
        for name, master in self._masters.items():
            round_bf16_(self._parameters[name].copy_(master))
        return norm

    def _apply(self, names: list[str], learning_rate: float, weight_decay: float) -> None:
        """AdamW for some of the parameters.

        Calls the kernel of ``torch.optim.AdamW(fused=True)`` itself: creating that class imports torch's compiler, which
        takes 80 MB and a second.
        """
        if not names:
            return
        gradients = self.gradients()
        no_amsgrad: list[Tensor] = []
        torch._fused_adamw_(
            [self._masters.get(name, self._parameters[name].detach()) for name in names],
            [gradients[name] for name in names],
            [self._exp_avg[name] for name in names],
            [self._exp_avg_sq[name] for name in names],
            no_amsgrad,
            [
                gradients[name].new_full((), self._num_updates, dtype=torch.float32)
                for name in names
            ],
            amsgrad=False,
            lr=learning_rate,
            beta1=self._betas[0],
            beta2=self._betas[1],
            weight_decay=weight_decay,
            eps=self._eps,
            maximize=False,
        )
        # The kernel does not count as a change, and an engine on these weights notices changes by that count.
        torch.autograd.graph.increment_version([self._parameters[name] for name in names])

    def gradients(self) -> dict[str, Tensor]:
        """Each parameter's ``.grad``: accumulated since ``zero_grad``, clipped in place by ``update``."""
        lost = [name for name, parameter in self._parameters.items() if parameter.grad is None]
        assert not lost, f"{lost} have no gradient: something cleared .grad after zero_grad()"
        return {name: p.grad for name, p in self._parameters.items() if p.grad is not None}

    def grad_norm(self) -> float:
        """Global 2-norm of the gradient.

        Raises:
            NumericsError: it is not finite.
        """
        squares = torch.stack([_sum_of_squares(gradient) for gradient in self.gradients().values()])
        is_finite, norm = to_host(squares.isfinite()), to_host(squares.sum().sqrt())
        if bad := [n for n, ok in zip(self._parameters, is_finite, strict=True) if not ok]:
            msg = (
                f"the gradient of {bad[0]} (and {len(bad) - 1} more of {len(squares)} parameters) is not finite: "
                "the update was not applied and the weights are as before; lower train.learning_rate or "
                "train.max_grad_norm, and look at the samples of this step"
            )
            raise NumericsError(msg)
        return float(norm)

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and master of each parameter, and the number of updates. Views: copy or write them before the next update."""
        return {
            "num_updates": torch.tensor(self._num_updates),
            **with_prefix("exp_avg.", self._exp_avg),
            **with_prefix("exp_avg_sq.", self._exp_avg_sq),
            **with_prefix("master.", self._masters),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a state into the present buffers.

        Raises:
            CheckpointError: entries are missing, surplus or of another shape, or the masters do not round to the present
                parameters. Nothing has changed.
        """
        mine = self.state_dict()
        check_state(mine, state, "optimizer")
        for name in self._masters:
            if not torch.equal(round_bf16(state[f"master.{name}"]), self._parameters[name]):
                msg = f"the optimizer's fp32 weights of {name} do not round to the model's: state and model are from different steps; load both from one checkpoint, the model first"
                raise CheckpointError(msg)
        for name, own in mine.items():
            own.copy_(state[name])
        self._num_updates = int(state["num_updates"])


def check_state(mine: Mapping[str, Tensor], given: Mapping[str, Tensor], owner: str) -> None:
    """Refuse a state whose names or shapes are not the owner's.

    Raises:
        CheckpointError: names the first entry that differs.
    """
    common = mine.keys() & given.keys()
    wrong = sorted(mine.keys() ^ given.keys())
    wrong += sorted(name for name in common if mine[name].shape != given[name].shape)
    if wrong:
        msg = f"the {owner}'s state does not belong to this model: {len(wrong)} entries are missing, surplus or of another shape (first: {wrong[0]}); resume with the model and the loss that wrote it, and the same parameters frozen"
        raise CheckpointError(msg)


def with_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state under a prefix, as a part of its owner's."""
    return {prefix + name: tensor for name, tensor in state.items()}


def without_prefix(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of a state that ``with_prefix`` put there."""
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def learning_rate_at(
    step: int, *, peak: float, schedule: Schedule, warmup_steps: int, total_steps: int
) -> float:
    """Learning rate of step ``step``, counted from 0.

    Steps [0, warmup_steps) rise linearly from 0 to ``peak``, both excluded. Then ``constant`` stays at ``peak``; ``linear`` and
    ``cosine`` fall to 0 at step ``total_steps``, one past the last: no step of the run is wasted on a rate of 0.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * (1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)


def _sum_of_squares(x: Tensor) -> Tensor:
    """Sum of squares as float64: fp32 within short blocks, float64 over blocks.

    fp32 throughout is wrong by 3e-4 for 28 M elements; float64 throughout takes 20 times as long and a copy.
    """
    flat = x.detach().view(-1)
    whole = len(flat) - len(flat) % _NORM_BLOCK
    norms = torch.linalg.vector_norm(flat[:whole].view(-1, _NORM_BLOCK), dim=1)
    return norms.double().square().sum() + flat[whole:].double().square().sum()
