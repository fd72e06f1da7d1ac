"""Memory that costs nothing until it is used, and what was paid for, kept."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's malloc.h


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, which on the CPU take memory only where something is written; `torch.zeros` would write them all."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=torch.empty(0, dtype=dtype).numpy().dtype))


def keep_freed() -> None:
    """Have this process keep what it frees for what it takes next, where the C library is glibc.

    Otherwise blocks of many megabytes, such as what a layer makes of a batch of images, go back to the system at once,
    and come again full of zeros, which takes longer than most of what is done with them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
