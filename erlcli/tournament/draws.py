"""Randomness of decisions: a stream for each row of the journal, so that a decision can be repeated later."""

from __future__ import annotations

import hashlib
from random import Random

from erlcli.recipe.tournament import TournamentRecipe


def derive(seed: int, *path: str | int) -> int:
    """A seed in [0, 2**31) for the stream named by `path`; the same hash as `core.seeding`, without torch."""
    text = "/".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") & 0x7FFF_FFFF


def random_of(seed: int, seq: int) -> Random:
    """What the decision in row `seq` draws from. Only `random()` is used of it, the same in every Python."""
    return Random(derive(seed, "row", seq))


def state_of(seed: int, seq: int) -> str:
    """The random state as a row tells it."""
    return f"{seed}/row/{seq}"


def seed_of(recipe: TournamentRecipe) -> int:
    """All randomness of a tournament derives from it."""
    return recipe.base.train.seed
