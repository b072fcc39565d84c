"""The only two functions that move numbers between the host and the model's device.

Plans, samples and statistics are numpy arrays on the host; tensors are on the model's device. On a CPU both are the
same memory, and nothing is copied. ``to_host`` waits until the device has computed.
"""

import numpy as np
import torch
from torch import Tensor


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """The array's elements on the device."""
    return torch.from_numpy(array).to(device)


def to_host(tensor: Tensor) -> np.ndarray:
    """The tensor's elements, without their gradient."""
    return tensor.detach().numpy(force=True)
