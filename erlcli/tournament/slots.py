"""Slots: the places that a tournament trains at. A GPU, a share of one, or CPU cores.

Names are text that says it all, `cpu:3`, `cuda:0` or `cuda:0/2` (the third share of GPU 0), so that a journal's list of
slots can be taken up again. On a cluster a slot is wherever there is room, `ray:3`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from erlcli.errors import RecipeError
from erlcli.recipe.words import wrap

_NAME = re.compile(r"(?:cpu|ray):(\d{1,5})|cuda:(\d{1,3})(?:/(\d{1,3}))?")


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        index: as `--gpus` counts them.
        visible: what CUDA_VISIBLE_DEVICES is to be for it alone.
        name: of the product.
    """

    index: int
    visible: str
    name: str


@dataclass(frozen=True)
class Slot:
    """Where one slice runs at a time.

    Attributes:
        name: see the module's docstring.
        gpu: index of its GPU; None for a CPU.
        cores: of the machine that its processes run on; none where they aren't pinned.
    """

    name: str
    gpu: int | None
    cores: tuple[int, ...]


def gpus() -> list[Gpu]:
    """GPUs that processes started from here may use; asks NVIDIA's library, and takes no memory of them."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            found = []
            for index in range(pynvml.nvmlDeviceGetCount()):
                name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index))
                found.append(name.decode() if isinstance(name, bytes) else str(name))
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no library, no driver, no GPU: each has an exception of its own
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [Gpu(i, str(i), name) for i, name in enumerate(found)]
    parts = (part.strip() for part in visible.split(","))  # CUDA takes them up to the first that is none
    chosen = list(itertools.takewhile(lambda part: _is_device(part, len(found)), parts))
    names = [found[int(part)] if part.isdigit() and int(part) < len(found) else "GPU" for part in chosen]
    return [Gpu(i, part, name) for i, (part, name) in enumerate(zip(chosen, names, strict=True))]


def _is_device(text: str, count: int) -> bool:
    return text.startswith(("GPU-", "MIG-")) or (text.isdigit() and int(text) < count)


def cores() -> tuple[int, ...]:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def parse_gpus(text: str) -> list[int]:
    """Indices in a list such as `0-3,6`.

    Raises:
        RecipeError: it is none.
    """
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,3})(?:\s*-\s*(\d{1,3}))?\s*", part)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise RecipeError(
                f"--gpus {text}: not a list of GPUs",
                expected="numbers and ranges, as in 0-3,6",
                found=part.strip() or "nothing between two commas",
                remedy="--gpus 0-7 takes eight, --gpus 0 the first",
            )
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return sorted(set(found))


def choose(count: int | None, gpu_list: str | None, per_gpu: int, here: Sequence[Gpu], usable: int) -> list[str]:
    """Names of the slots that the options of a command mean.

    Args:
        count: CPU slots that are asked for.
        gpu_list: GPUs that are asked for, as `parse_gpus` takes them.
        per_gpu: slots that share each.
        here: the GPUs of this machine.
        usable: its CPUs.

    Returns:
        What was asked for; all GPUs, or one slot a core, where nothing was.

    Raises:
        RecipeError: both were asked for, or a GPU that isn't there.
    """
    if count is not None and gpu_list is not None:
        raise RecipeError("--slots and --gpus: slots are cores or GPUs", expected="one of the two", found="both",
                          remedy="--gpus LIST --per-gpu K lets K members share each GPU")  # fmt: skip
    if count is not None:
        return [f"cpu:{i}" for i in range(count)]
    wanted = parse_gpus(gpu_list) if gpu_list is not None else [gpu.index for gpu in here]
    missing = [index for index in wanted if index >= len(here)]
    if missing:
        names = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in here)
        cpu = f"--slots {usable} trains on this machine's {usable} cores"
        raise RecipeError(
            f"--gpus {gpu_list}: not on this machine: {_ranges(missing)}",
            expected=wrap(f"of these GPUs: {names}" if here else "GPUs that are there; this machine has none"),
            found=_ranges(wanted),
            remedy=wrap(f"--gpus {_ranges([gpu.index for gpu in here])}, or {cpu}" if here else cpu),
        )
    if not wanted:
        return [f"cpu:{i}" for i in range(usable)]
    return [f"cuda:{i}/{k}" if per_gpu > 1 else f"cuda:{i}" for i in wanted for k in range(per_gpu)]


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as `--gpus` takes them."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def lay_out(names: Sequence[str], usable: Sequence[int]) -> list[Slot]:
    """Slots of these names, each with its share of the cores.

    The cores are dealt out in runs of neighbours; where there are more slots than cores, several share one.

    Raises:
        RecipeError: a name that is none, or comes twice.
    """
    slots: list[Slot] = []
    count = len(names)
    for place, name in enumerate(names):
        match = _NAME.fullmatch(name)
        if match is None or name in names[:place]:
            raise RecipeError(
                f"slot {name}: {'not a slot' if match is None else 'comes twice'}",
                expected="cpu:N, cuda:N, cuda:N/K or ray:N, each once",
                found=name,
                remedy="erl scale TOURNAMENT --slots N, or --gpus LIST",
            )
        if count <= len(usable):
            share = tuple(usable[len(usable) * place // count : len(usable) * (place + 1) // count])
        else:
            share = (usable[place % len(usable)],)
        slots.append(Slot(name, None if match[2] is None else int(match[2]), share))
    return slots


def shrink(names: Sequence[str], ranks: dict[str, int], count: int) -> list[str]:
    """The `count` slots to keep: those at which the best members train; then those that are free.

    Args:
        names: slots there are.
        ranks: place of the member at each busy one, from 1.
        count: to keep.
    """
    order = sorted(range(len(names)), key=lambda i: (ranks.get(names[i], len(ranks) + 1), i))
    return [names[i] for i in sorted(order[:count])]


def resized(names: Sequence[str], ranks: dict[str, int], count: int) -> list[str]:
    """So many slots: the best of those there are, or further cores, or further ones of a cluster.

    Args:
        names: slots there are.
        ranks: as of `shrink`.
        count: that there are to be.

    Raises:
        RecipeError: more are wanted on GPUs, of which somebody has to say which.
    """
    if count <= len(names):
        return shrink(names, ranks, count)
    if names and all(name.startswith("ray:") for name in names):
        return more(names, count)
    if any(not name.startswith("cpu:") for name in names):
        raise RecipeError(
            f"{count} slots: more than the tournament has on its GPUs",
            expected="a list of GPUs",
            found=", ".join(names),
            remedy="erl scale TOURNAMENT --gpus LIST --per-gpu K",
        )
    further = (f"cpu:{i}" for i in range(count + len(names)) if f"cpu:{i}" not in names)
    return [*names, *itertools.islice(further, count - len(names))]


def sharing(names: Sequence[str], slot: str) -> list[str]:
    """Those of the slots that are on the same GPU of this machine as `slot`; none for a CPU."""
    gpu = slot.partition("/")[0]
    return [name for name in names if name == gpu or name.startswith(f"{gpu}/")] if gpu.startswith("cuda:") else []


def more(names: Sequence[str], count: int) -> list[str]:
    """`count` slots of a cluster: those there are, and the first free numbers behind them."""
    fresh = (f"ray:{i}" for i in itertools.count() if f"ray:{i}" not in names)
    return [*names, *itertools.islice(fresh, count - len(names))]
