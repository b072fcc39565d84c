"""The whole policy on a device that is no CPU, without such a device: shapes and places of tensors, and no numbers.

A script, since the device that it registers is there for the rest of a process:

    python tests/helpers/other_device.py

prints a JSON object: name of a case -> "ok", or the error. Numbers that the host asks of the device are zeros here, which
is possible since they cross at one place (``kernels.crossing``); what the host computes of them runs as it is.
"""

import json
import sys
import traceback
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from helpers.tiny_engine import request, tiny_engine
from helpers.tiny_models import tiny_config
from helpers.train_batches import make_sample, rewarded
from zerogap.algorithms import Algorithm
from zerogap.config import TrainConfig
from zerogap.kernels import Compute, Head, crossing, log_probs, log_probs_with_squares
from zerogap.models import CausalLM
from zerogap.train import NativeTrainer, Teacher, host_loss
from zerogap.train.forward import hidden_rows
from zerogap.train.optimizer import Optimizer
from zerogap.train.packing import pack

DEVICE = "gpu:0"


def zeros_for_the_host(tensor: torch.Tensor) -> np.ndarray:
    """What the host reads: zeros, and True."""
    assert isinstance(tensor, FakeTensor), "a real tensor among those of the other device"
    assert tensor.device == torch.device(DEVICE), f"the host reads a tensor of {tensor.device}"
    with unset_fake_temporarily():
        dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
    return np.full(tuple(tensor.shape), dtype.kind == "b", dtype)


def on_the_host(function):
    """Torch on the host is real torch."""

    def real(*arguments, **named):
        with unset_fake_temporarily():
            return function(*arguments, **named)

    return real


def shape_of_an_array(array: np.ndarray) -> torch.Tensor:
    """A tensor of the host, and none of which torch would remember the number: it cannot be moved without a device."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
        return _from_numpy(array)
    with unset_fake_temporarily():
        dtype = _from_numpy(array).dtype
    return torch.empty(array.shape, dtype=dtype)


_from_numpy = torch.from_numpy


@contextmanager
def other_device():
    """Within it every new tensor is a fake one."""
    _replace(crossing.to_host, zeros_for_the_host)
    host_loss.evaluate = on_the_host(host_loss.evaluate)
    torch.from_numpy = shape_of_an_array
    # A copy of a model belongs to the same mode.
    FakeTensorMode.__deepcopy__ = lambda mode, memo: mode
    with FakeTensorMode():
        yield


def _replace(function, stand_in) -> None:
    for module in list(sys.modules.values()):
        if getattr(module, function.__name__, None) is function:
            setattr(module, function.__name__, stand_in)


def model(**config) -> CausalLM:
    with torch.device(DEVICE):
        return CausalLM(tiny_config("qwen3", num_layers=1, **config))


def samples():
    return rewarded([
        make_sample([1, 2, 3], range(4, 9 + i), group_id=f"g{i % 2}", index=i) for i in range(4)
    ])  # fmt: skip


def forward_backward_and_optimizer() -> None:
    policy, (batch,) = model(), pack(samples(), [s.loss_mask for s in samples()], max_rows=1000)
    optimizer = Optimizer(policy, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, max_grad_norm=1.0)
    hidden_TD = hidden_rows(policy, batch, compute=Compute(adds_to_grad=True))
    target = torch.zeros(len(hidden_TD), dtype=torch.int64, device=DEVICE)
    log_prob_T, entropy_T, squares_T = log_probs_with_squares(
        hidden_TD, policy.head, target, torch.ones(len(target), device=DEVICE)
    )
    assert squares_T.device == torch.device(DEVICE)
    (log_prob_T + entropy_T).sum().backward()
    optimizer.update(1e-3)


def engine_steps(**changes) -> None:
    engine = tiny_engine(model(), **changes)
    edited = request(n=2, max_new_tokens=4, repetition_penalty=1.2, top_p=0.9, top_k=5)
    outputs = engine.generate([request(n=3, max_new_tokens=4), edited])
    assert [len(output.output_ids) for output in outputs] == [4] * 5
    engine.release_memory_occupation()
    engine.resume_memory_occupation()
    engine.score(range(3, 40))


def trainer_step(algorithm=None, **train) -> None:
    trainer = NativeTrainer(model(), TrainConfig(**train), algorithm or Algorithm(), total_steps=2)
    trainer.step(trainer.plan(samples()))


def self_distillation() -> None:
    """The teacher is an average of the policy, which reads another prompt."""
    algorithm = Algorithm.preset("sdpo", teacher={"top_k": 3}, acceptance={"tolerance": 0.1})
    teacher = Teacher(model(), vocab_limit=model().head.vocab_limit)
    trainer = NativeTrainer(model(), TrainConfig(), algorithm, total_steps=2, teacher=teacher)
    trainer.step(trainer.plan([replace(s, teacher_prompt_ids=(7, 8, 9, 10)) for s in samples()]))


def cpu_targets() -> None:
    """Planted: the trainer asks the head about targets that stayed on the host."""
    with mock.patch("zerogap.train.forward.to_device", lambda array, _: torch.from_numpy(array)):
        trainer_step()


def cpu_layout() -> None:
    """Planted: who sees what stayed on the host."""
    stays = mock.patch("zerogap.kernels.layout.PackedLayout.to", lambda layout, _: layout)
    with stays:
        trainer_step()


def cpu_scalar() -> None:
    """Planted: a temperature without dimensions, which torch itself lets pass."""
    head = Head(torch.zeros(9, 4, device=DEVICE), 9)
    ids = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    log_probs(torch.zeros(3, 4, device=DEVICE), head, ids, torch.ones(()))


CASES = {
    "forward, backward and optimizer": forward_backward_and_optimizer,
    "engine": engine_steps,
    "engine without prefix cache": lambda: engine_steps(prefix_cache=False),
    "trainer": trainer_step,
    "trainer, several updates and recomputation": lambda: trainer_step(
        updates_per_step=2, recompute=True
    ),
    "trainer with a critic": lambda: trainer_step(Algorithm.preset("ppo")),
    "trainer with the optimal token baseline": lambda: trainer_step(Algorithm.preset("otb")),
    "trainer with an entropy bonus": lambda: trainer_step(
        Algorithm.preset("gspo", entropy={"coefficient": 0.01})
    ),
    "trainer with self-distillation": self_distillation,
    "planted: targets on the CPU": cpu_targets,
    "planted: a layout on the CPU": cpu_layout,
    "planted: a CPU scalar": cpu_scalar,
}


def main() -> None:
    _setup_privateuseone_for_python_backend("gpu")
    # Recomputation asks every device what it casts by itself.
    torch.gpu.get_amp_supported_dtype = lambda: [torch.bfloat16]
    torch.set_num_threads(1)
    found = {}
    with other_device():
        for name, case in CASES.items():
            try:
                case()
                found[name] = "ok"
            except Exception as error:  # noqa: BLE001 - reported
                if "-v" in sys.argv:
                    traceback.print_exc(limit=-4)
                found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
