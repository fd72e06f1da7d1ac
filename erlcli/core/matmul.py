"""Which library multiplies matrices on the CPU, and how exactly.

PyTorch's CPU builds hand float32 products to MKL, which on AMD's AVX-512 processors uses only half their vector width;
oneDNN, which comes with PyTorch too, uses all of it: 250 instead of 110 GFLOP/s a core for a batch of 256 through
256 x 256. Its calls cost some 10 microseconds more, so narrow layers stay with MKL.

Where the processor multiplies bfloat16 numbers itself, oneDNN can round the factors of a product to them and sum in
float32: 600 instead of 180 GFLOP/s a core with AMX, at 8 bits of a mantissa's 24. Weights, gradients and optimisers
stay float32.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import torch

# "bf16" only permits to round: where the processor has no instruction for it, oneDNN multiplies float32 numbers.
ONEDNN, DEFAULT = "bf16", "none"
TOLERANCE = 1e-6  # relative to the norm of the product; bfloat16 would be wrong by 3e-3


def choose(*, wide: bool, rounded: bool = False) -> bool:
    """Set this process's library for float32 products.

    Args:
        wide: whether most of the work is in layers of 256 or more.
        rounded: whether their factors are to be rounded to bfloat16, which the processor must know; see `rounds`.

    Returns:
        Whether it is oneDNN.
    """
    chosen = rounded or (wide and _onednn_pays())
    _set(ONEDNN if chosen else DEFAULT)
    return chosen


def rounds() -> bool:
    """Whether this processor multiplies bfloat16 numbers itself, by AMX or AVX-512."""
    known = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return bool(known and torch._C._has_mkldnn)


def rounding() -> bool:
    """Whether this process does so; see `choose`."""
    return precision() == ONEDNN and rounds()


def precision() -> str:
    """What products are set to in this process, for what depends on it."""
    return str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Products of float32 numbers as they are meanwhile."""
    before = precision()
    _set(DEFAULT)
    try:
        yield
    finally:
        _set(before)


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
