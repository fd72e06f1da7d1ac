"""Seeds: one number in the recipe, distinct streams for everyone who draws.

A stream is named by a path, such as `(seed, "env", worker, version)`. Hashing the path gives streams of
their own to all, whatever the number of workers, and they can be derived anew at any restart point.
"""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *path: str | int) -> int:
    """A seed in [0, 2**31) for the stream named by `path`; 31 bits is what every env backend takes."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") & 0x7FFF_FFFF


def generator(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator for the stream named by `path`."""
    return torch.Generator(device=device).manual_seed(derive(seed, *path))
