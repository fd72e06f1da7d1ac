"""Which library multiplies matrices on the CPU.

PyTorch's CPU builds hand float32 products to MKL, which on AMD's AVX-512 processors uses only half their vector width;
oneDNN, which comes with PyTorch too, uses all of it: 250 instead of 110 GFLOP/s a core for a batch of 256 through
256 x 256. Its calls cost some 10 microseconds more, so narrow layers stay with MKL.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

ONEDNN, DEFAULT = "bf16", "none"  # "bf16" only permits to round; without AMX, oneDNN has nothing faster than float32
TOLERANCE = 1e-6  # relative to the norm of the product; bfloat16 would be wrong by 3e-3


def choose(*, wide: bool) -> bool:
    """Set this process's library for float32 products.

    Args:
        wide: whether most of the work is in layers of 256 or more.

    Returns:
        Whether it is oneDNN.
    """
    chosen = wide and _onednn_pays()
    _set(ONEDNN if chosen else DEFAULT)
    return chosen


def _set(precision: str) -> None:
    torch.backends.mkldnn.matmul.fp32_precision = precision  # type: ignore[attr-defined]


@functools.cache
def _onednn_pays() -> bool:
    """Whether MKL would leave half of the vector width unused, and oneDNN is as exact as it."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch._C._has_mkldnn:
        return False
    if _vendor() != "AuthenticAMD":
        return False
    _set(ONEDNN)
    try:
        return _error() < TOLERANCE
    finally:
        _set(DEFAULT)


def _error() -> float:
    """Relative error of a float32 product as this process computes it now."""
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=source) for _ in range(2))
    exact = a.double() @ b.double()
    return float((a @ b - exact).norm() / exact.norm())


def _vendor() -> str:
    """The processor's maker as Linux has it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")), "")
