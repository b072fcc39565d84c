"""Which backend computes: a look-up by the device and dtype of a call's tensors."""

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels.backend import Backend, Compute
from zerogap.kernels.native import native
from zerogap.kernels.torch_backend import TorchBackend

BACKENDS: dict[str, Backend] = {"cpu": native, "torch": TorchBackend()}
"""Every backend by its name."""

OF_DEVICE: dict[str, str] = {"cpu": "cpu"}
"""The preferred backend of each device type; "torch" takes the rest."""


def backend_of(tensor: Tensor, *others: Tensor | None) -> Backend:
    """The backend for a call on these tensors.

    Raises:
        KernelError: they are not all on one device (torch itself accepts CPU scalars and CPU indices).
    """
    if tensor.is_cpu:
        # is_cpu is a flag. Comparing devices would allocate an object each time, and most calls are on a CPU.
        for other in others:
            if other is not None and not other.is_cpu:
                raise KernelError(_mixed(tensor, others))
        name = OF_DEVICE["cpu"]
    else:
        device = tensor.device
        for other in others:
            if other is not None and other.device != device:
                raise KernelError(_mixed(tensor, others))
        name = OF_DEVICE.get(device.type, "torch")
    backend = BACKENDS[name]
    return backend if backend.takes(tensor) else BACKENDS["torch"]


def gemm_choice(compute: Compute) -> tuple[object, ...]:
    """A key for the GEMM kernels that run on this CPU: equal as long as the same kernels run."""
    backend = backend_of(torch.empty(0))
    return (backend.name, id(native.library), backend.tile, compute)


def _mixed(tensor: Tensor, others: tuple[Tensor | None, ...]) -> str:
    where = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in (tensor, *others) if t is not None)
    return f"a kernel was given tensors of several devices: {where}; create every tensor on the model's device"
