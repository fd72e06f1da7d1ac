"""Equal state among learners: given out by the first one at the start, and checked whenever a checkpoint is saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from erlcli.core.algorithm import Algorithm
from erlcli.core.collective import Collective
from erlcli.engine.checkpoint import flatten, unflatten
from erlcli.errors import ErlError, PeerLostError


def give_out(algorithm: Algorithm, facts: dict[str, Any], collective: Collective) -> dict[str, Any]:
    """Give all learners what the first one has, whether fresh or from a checkpoint.

    Args:
        algorithm: of the same recipe in all learners.
        facts: JSON values that belong to it.
        collective: of the learners.

    Returns:
        The first learner's facts.
    """
    tensors, values = flatten({"policy": algorithm.policy.state_dict(), "learner": algorithm.state_dict()})
    values, facts = collective.gather([values, facts])[0]
    for name in sorted(tensors):
        collective.broadcast_(tensors[name])
    if not collective.leads:
        state = unflatten(tensors, values)
        algorithm.policy.load_state_dict(state["policy"])
        algorithm.load_state_dict(state["learner"])
    return facts


def first_does(collective: Collective, action: Callable[[], None]) -> None:
    """Have the first learner write something; the others wait for it.

    Raises:
        OSError: it can't.
        PeerLostError: the same, in the others.
    """
    failed: OSError | None = None
    try:
        if collective.leads:
            action()
    except OSError as error:
        failed = error
    if collective.any(failed is not None):
        raise failed or PeerLostError("the first learner can't write to the disk")


def digests(algorithm: Algorithm) -> dict[str, str]:
    """A hash of every tensor of policy and learner by name, and one of all other values."""
    tensors, values = flatten({"policy": algorithm.policy.state_dict(), "learner": algorithm.state_dict()})
    found = {name: _digest(tensor) for name, tensor in tensors.items()}
    found["values"] = hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()
    return found


def check_equal(algorithm: Algorithm, collective: Collective) -> None:
    """Compare what the learners hold.

    Raises:
        ErlError: they have drifted apart; all learners raise it.
    """
    if collective.world_size == 1:
        return
    first, *others = collective.gather(digests(algorithm))
    for rank, other in enumerate(others, 1):
        differing = sorted(name for name in first.keys() | other.keys() if first.get(name) != other.get(name))
        if differing:
            raise ErlError(
                f"learners 0 and {rank} no longer hold the same weights: {differing[0]}",
                expected="equal weights, since all take the same steps",
                found=f"{len(differing)} of {len(first)} tensors differ",
                remedy="the last checkpoint is good; learners on machines with different CPUs, GPUs or libraries may "
                "round differently: use equal ones, or engine.learners = 1",
            )


def _digest(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(data.data, digest_size=8).hexdigest()
