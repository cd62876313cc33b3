"""What a network yields, brought to the host and checked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sparkrt_ros.runtime.errors import ActionError
from sparkrt_ros.runtime.types import FloatArray


def to_host(tensor: Tensor) -> FloatArray:
    """Return float32 values on the host, in memory of their own."""
    # np.array copies: on a CPU the tensor may be a buffer that the next inference overwrites.
    return np.array(tensor.to('cpu', torch.float32).numpy())


def check_finite(actions: FloatArray) -> None:
    """Raise ActionError naming the columns of (..., A) that are not finite."""
    if np.isfinite(actions).all():
        return
    columns = sorted({int(column) for column in np.argwhere(~np.isfinite(actions))[:, -1]})
    raise ActionError(
        'policy output',
        found=f'non-finite values in columns {", ".join(map(str, columns))}',
        expected='finite actions',
        remedy='check the observation for values far outside the training data',
    )
