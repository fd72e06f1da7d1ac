"""Gradient steps as machine code: a function of tensors is traced once, compiled once for a machine, and kept.

On a CPU a step of a small network is mostly the overhead of its some hundred operations. TorchInductor makes loops of
them that leave matrix products alone in between: a step of PPO on 64 rows through 64 x 64 takes a fifth of the time.
Compiling takes a C++ compiler and some twenty seconds. What comes of it is a shared library, which the next run that
does the same loads within milliseconds, without the compiler and without tracing.

What may be compiled is what `core.graphs` may capture, with two more limits: nothing is drawn in it (what is random is
an argument), and all tensors that it reads or writes are arguments or can be reached from its owner by the names of
attributes. A number of the recipe that is no schedule may be read as a Python number, since it is part of the library's
name: a run with another number has another library.

Before a library is kept, a step of it is compared with PyTorch's. Rounding differs in the last digits, and with it
everything that comes of it after thousands of steps. Whether a run compiles is therefore decided by its recipe and the
machine, never by time, and a library that is there already gives the bits that a new one does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor

from erlcli.core import machine_code, matmul, trees
from erlcli.core.machine_code import Library
from erlcli.core.schedule import Schedule


class Owner(Protocol):
    """Whose step it is."""

    @property
    def config(self) -> object:
        """What of the recipe it is made from, with a `repr` that tells; another object where a number has changed."""


OwnerT = TypeVar("OwnerT", bound=Owner)
P = ParamSpec("P")
Tell = Callable[[str, str | None], None]
_PACKAGE = Path(__file__).parents[1]


class Compiler:
    """Compiles the steps of a run.

    Args:
        directory: of the libraries; None compiles nothing.
        tell: called with the name of a step and, if it is not compiled, the reason.
        begin: called with the name of a step before it is compiled, which takes long.
    """

    def __init__(
        self,
        directory: Path | None = None,
        tell: Tell = lambda name, reason: None,
        begin: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.directory, self.tell, self.begin = directory, tell, begin

    def compile(
        self,
        name: str,
        run: Callable[Concatenate[OwnerT, P], tuple[Tensor, ...]],
        facts: Sequence[object] = (),
        *,
        rows_vary: bool = False,
        refusal: str | None = None,
    ) -> Compiled[OwnerT, P]:
        """`run`, to be compiled unless there is a reason not to.

        Args:
            name: of the step, for messages.
            run: the step, a function of its owner, from which all tensors that are no arguments can be reached, and
                whose `config` may change, and of arguments: tensors, dataclasses of tensors, and None.
            facts: whatever else decides what it does, with a `repr` that says so.
            rows_vary: whether the first dimension of all arguments, the same for all, differs from call to call.
            refusal: why it can't be compiled; None if it can.
        """
        compiler: Compiler | None = self
        if self.directory is None:
            compiler = None
        elif refusal is not None:
            self.tell(name, refusal)
            compiler = None
        return Compiled(name, run, facts, rows_vary, compiler)


class Compiled(Generic[OwnerT, P]):
    """A step that is compiled at its first call, or found compiled, if it is to be.

    It is called with its owner, always the same, since an owner that it had itself would never go as long as Python
    doesn't look for cycles, and with it a replay.
    """

    def __init__(
        self,
        name: str,
        run: Callable[Concatenate[OwnerT, P], tuple[Tensor, ...]],
        facts: Sequence[object],
        rows_vary: bool,
        compiler: Compiler | None,
    ) -> None:
        self.name, self._run, self._facts = name, run, facts
        self._first = 1 if rows_vary else 0  # dimension from which on shapes are fixed
        self._compiler = compiler
        self._config: object = None
        self._shapes: list[torch.Size] = []
        self._library: Library | None = None
        self._path: Path | None = None  # of the library

    def __call__(self, owner: OwnerT, *args: P.args, **kwargs: P.kwargs) -> tuple[Tensor, ...]:
        """What the step returns.

        Raises:
            TypeError: an argument is given by its name.
        """
        if kwargs:
            raise TypeError("arguments of a step: expected by position, found by name")
        if self._compiler is None:
            return self._run(owner, *args, **kwargs)
        # Machine code takes it for granted how a tensor lies in memory, and asks nobody.
        tensors = [t if t.is_contiguous() else t.contiguous() for t in trees.tensors(args)]
        shapes = [t.shape[1:] for t in tensors] if self._first else [t.shape for t in tensors]
        changed = shapes != self._shapes or self._config is not owner.config
        if self._library is None or changed:
            self._shapes = shapes
            self._library = self._prepare(owner, args, tensors)
            if self._library is None:
                return self._run(owner, *args, **kwargs)
        return self._library(tensors)

    def _prepare(self, owner: OwnerT, args: Sequence[object], tensors: list[Tensor]) -> Library | None:
        """The library for these arguments; None where there can't be one."""
        compiler = self._compiler
        if compiler is None or compiler.directory is None:
            return None
        self._config = owner.config
        path = compiler.directory / self._key(owner, tensors)
        if path == self._path:  # what has changed is a schedule
            return self._library
        self._path = path
        known = trees.named(owner)
        library = Library.find(path, known)
        if library is None:
            compiler.begin(self.name)
            step = functools.partial(self._run, owner)
            try:
                library = machine_code.make(step, args, tensors, self._first, path, known)
            except Exception as error:
                # Whatever it was, the step itself can do without; a fault of its own shows itself again at once.
                self._compiler = None
                compiler.tell(self.name, str(error).strip().partition("\n")[0] or type(error).__name__)
                return None
        compiler.tell(self.name, None)
        return library

    def _key(self, owner: object, tensors: list[Tensor]) -> str:
        """Of all that decides what the machine code has to do."""
        facts = (
            type(owner).__module__,
            type(owner).__qualname__,
            self.name,
            _settings(self._config),
            [repr(fact) for fact in self._facts],
            [(str(t.dtype), list(t.shape[self._first :]), t.dim()) for t in tensors],
            torch.get_num_threads(),
            matmul.precision(),
            *_machine(),
        )
        return hashlib.sha256(json.dumps(facts, default=repr).encode()).hexdigest()[:32]


def _settings(config: object) -> object:
    """A config without the numbers that are set on tensors: of a schedule, only whether it is always 0."""
    if not isinstance(config, BaseModel):
        return repr(config)
    settings: dict[str, object] = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Schedule):
            settings[name] = value.is_zero
        else:
            settings[name] = _settings(value) if isinstance(value, BaseModel) else repr(value)
    return settings


@functools.cache
def _machine() -> tuple[str, ...]:
    """What machine code depends on beside the step: this code, PyTorch and the processor."""
    digest = hashlib.sha256()
    for path in sorted((*_PACKAGE.glob("core/*.py"), *_PACKAGE.glob("algorithms/**/*.py"))):
        digest.update(path.read_bytes())
    flags = ""
    with contextlib.suppress(OSError):
        flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return digest.hexdigest(), torch.__version__, platform.machine(), platform.system(), flags
