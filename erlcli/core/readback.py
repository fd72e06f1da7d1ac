"""Numbers on their way from a device to the host, which goes on meanwhile."""

from __future__ import annotations

import torch
from torch import Tensor


class Readback:
    """A copy of a tensor that the host can look at once it has arrived.

    Args:
        tensor: may be overwritten as soon as this is made.
    """

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach()
        self._arrived: torch.cuda.Event | None = None
        if tensor.is_cuda:
            # Without pinned memory the copy would make the host wait.
            self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(tensor.device))
        else:
            self._host = tensor.clone()

    @property
    def ready(self) -> bool:
        """Whether `get` won't wait."""
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def get(self) -> Tensor:
        """The copy, on the CPU; waits for the device."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host
