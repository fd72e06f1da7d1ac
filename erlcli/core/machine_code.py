"""Machine code of a step: traced, compiled, compared and kept by TorchInductor's ahead-of-time compiler.

A step is traced with fake tensors, whose operations are written down. The owner's tensors turn up in that as constants;
they become inputs here, and what shares memory becomes views of one input, so that the compiler knows that whoever
writes the vector of an optimiser writes the layers of its network. Gradients and the step on them are part of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from erlcli.core import matmul, trees
from erlcli.core.decompositions import DECOMPOSITIONS
from erlcli.core.toolchain import cxx

OPTIONS: dict[str, Any] = {
    # A library takes a fifth less time than with O0 between the loops, for two more seconds; O2 brings no more.
    "aot_inductor.compile_wrapper_opt_level": "O1",
    "aot_inductor.precompile_headers": False,  # they would pay from the second library on, and stay in /tmp
    "aot_inductor.enable_line_tables": False,  # nobody looks for a line of it, and they take a sixth of the time
    "aot_inductor.enable_frame_pointer": False,
    "cpp.vec_isa_ok": True,  # what the processor says, without a program that tries it
    "compile_threads": 1,  # no processes that stay
}
LARGEST = 2**26  # bytes of a tensor that a step works on; most of a replay's have more, and are not copied
TOLERANCE = 1e-3  # of a tensor that a step has changed, relative to the largest number in it
# Where a gradient is nothing but rounding, as that of a bias before a batch norm, Adam's first step goes by its sign.
STRAYS, STRAY_TOLERANCE = 0.01, 3e-2  # share of a tensor's numbers that may be off by more, and by how much
KEPT_DAYS = 90  # of a library that nobody uses
SCRATCH = "making-"
_state = {"tracing": False}


def tracing() -> bool:
    """Whether operations are written down to be compiled, instead of being executed."""
    return _state["tracing"]


@dataclass(frozen=True)
class Place:
    """A vector that a library reads or writes: which of the owner's tensors holds it."""

    path: str
    size: int
    dtype: str


class Library:
    """Machine code with the tensors that it works on.

    Args:
        path: of its directory.
        places: of the owner's tensors among its inputs, which come first.
        known: the owner's tensors by their path.

    Raises:
        ValueError: the owner's tensors are not those that it was made for.
        RuntimeError: it can't be loaded.
    """

    CODE, PLACES = "*.so", "inputs.json"  # the first by a name of its own, see `make`

    def __init__(self, path: Path, places: Sequence[Place], known: dict[str, Tensor]) -> None:
        self.owned: list[Tensor] = []
        for place in places:
            tensor = known[place.path]
            if _whole(tensor).numel() != place.size or str(tensor.dtype) != place.dtype:
                raise ValueError(f"{place.path}: not the tensor that {path} was made for")
            self.owned.append(_whole(tensor))
        (code,) = path.glob(self.CODE)
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(code), 1)

    @classmethod
    def find(cls, path: Path, known: dict[str, Tensor]) -> Library | None:
        """From its directory; None where it isn't there, or is damaged."""
        try:
            return cls.load(path, known)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            return None

    @classmethod
    def load(cls, path: Path, known: dict[str, Tensor]) -> Library:
        """From its directory; what is wrong with it raises what it will."""
        rows = json.loads((path / cls.PLACES).read_text())
        with contextlib.suppress(OSError):
            os.utime(path)  # see `_forget_old`
        return cls(path, [Place(**row) for row in rows], known)

    def __call__(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """One step; the tensors of its arguments."""
        return tuple(self._runner.run([*self.owned, *tensors]))


def make(
    run: Callable[..., tuple[Tensor, ...]],
    args: Sequence[object],
    tensors: list[Tensor],
    first: int,
    path: Path,
    known: dict[str, Tensor],
) -> Library:
    """Trace, compile, compare and keep a step; the owner's tensors are afterwards what they were.

    Args:
        run: the step.
        args: an example of its arguments.
        tensors: those in them.
        first: dimension of them from which on sizes are always the same, 0 or 1.
        path: of the library to be.
        known: the owner's tensors by their path.

    Raises:
        Exception: of many kinds; the step can't be compiled, or compiled it does something else.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        with contextlib.suppress(OSError):  # where files can't be locked, each process compiles for itself
            fcntl.flock(lock, fcntl.LOCK_EX)
        if (found := Library.find(path, known)) is not None:
            return found  # another process has just made it
        if cxx() is None:
            raise RuntimeError("no C++ compiler here: install g++, or set CXX")
        module, inputs, places = _traced(run, args, tensors, first, known)
        _forget_old(path.parent)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=path.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            # By a name that no other has: the dynamic linker gives a process what it has loaded by the same one before.
            _compile(module, inputs, Path(scratch)).rename(made / f"{Path(scratch).name.removeprefix(SCRATCH)}.so")
            (made / Library.PLACES).write_text(json.dumps([vars(place) for place in places]))
            library = Library.load(made, known)
            _compare(library, run, args, tensors)
            if first and len(tensors[0]) > 2:  # nor may what varies have been taken for what it was in the example
                fewer = [t[:-1] for t in tensors]
                _compare(library, run, trees.rebuilt(tuple(args), iter(fewer)), fewer)
            shutil.rmtree(path, ignore_errors=True)  # what could not be loaded
            made.rename(path)
        return Library.load(path, known)


def _compile(module: torch.fx.GraphModule, inputs: list[Tensor], scratch: Path) -> Path:
    """The shared library of a graph, somewhere in `scratch` like all else that the compiler writes."""
    from torch._inductor import aot_compile

    options = {**OPTIONS, "aot_inductor.output_path": str(scratch / "step.so")}
    name, before = "TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ[name] = str(scratch / "inductor")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler about itself
            return Path(str(aot_compile(module, tuple(inputs), options=options)))
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _forget_old(directory: Path) -> None:
    """Remove libraries that nobody has used for long, and what killed compilers have left."""
    for path in directory.iterdir():
        days = 1 if path.name.startswith(SCRATCH) else KEPT_DAYS
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > days * 86400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _traced(
    run: Callable[..., tuple[Tensor, ...]],
    args: Sequence[object],
    tensors: list[Tensor],
    first: int,
    known: dict[str, Tensor],
) -> tuple[torch.fx.GraphModule, list[Tensor], list[Place]]:
    """The step's operations, its inputs as the compiler wants them, and which tensors of the owner they begin with."""
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes, allow_non_fake_inputs=True)
    fakes: list[Tensor] = []
    for i, tensor in enumerate(tensors):
        varies = [DimDynamic.DUCK if d < first else DimDynamic.STATIC for d in range(tensor.dim())]
        symbols: Any = StatelessSymbolicContext(dynamic_sizes=varies)
        fakes.append(mode.from_tensor(tensor, source=ConstantSource(f"argument{i}"), symbolic_context=symbols))

    def flat(*replacements: Tensor) -> tuple[Tensor, ...]:
        return run(*trees.rebuilt(tuple(args), iter(replacements)))

    # Operations on nothing but the owner's tensors, such as counting a step, are really done.
    with _unchanged(known.values()):
        _state["tracing"] = True
        try:
            with mode:
                module = make_fx(flat, DECOMPOSITIONS, _allow_non_fake_inputs=True)(*fakes)
        finally:
            _state["tracing"] = False
    if sizes.guards:  # Python has looked at a size that varies, and the graph is only good for what it saw
        raise ValueError(f"what it does depends on the number of rows: {sizes.guards[0].expr}")
    places, vectors = _lift(module, known)
    bare = torch.fx.GraphModule({}, module.graph)  # without the constants that are inputs now
    inputs = [*(mode.from_tensor(vector, static_shapes=True) for vector in vectors), *fakes]
    for node, fake in zip(bare.graph.find_nodes(op="placeholder"), inputs, strict=True):
        node.meta["val"] = fake  # which is where the compiler looks
    return bare, inputs, places


def _lift(module: torch.fx.GraphModule, known: dict[str, Tensor]) -> tuple[list[Place], list[Tensor]]:
    """Turn the owner's tensors in the graph from constants into inputs.

    Those that share memory, such as the layers of a network in the vector of its optimiser, become views of one input,
    so that the compiler knows that whoever writes one writes the other.
    """
    by_address = {_whole(t).data_ptr(): name for name, t in known.items() if t.numel()}
    graph = module.graph
    first = next(iter(graph.nodes))
    inputs: dict[int, torch.fx.Node] = {}
    places: list[Place] = []
    vectors: list[Tensor] = []
    aten = torch.ops.aten
    for node in graph.find_nodes(op="get_attr"):
        tensor: Tensor = getattr(module, str(node.target))
        vector = _whole(tensor)
        address = vector.data_ptr()
        if address not in by_address:
            raise ValueError(f"it reads a tensor {tuple(tensor.shape)} that is neither its owner's nor an argument")
        if vector.untyped_storage().nbytes() > LARGEST:
            raise ValueError(f"{by_address[address]}: larger than {LARGEST >> 20} MiB")
        if not tensor.is_contiguous():
            raise ValueError(f"{by_address[address]}: not contiguous")
        if address not in inputs:
            with graph.inserting_before(first):
                inputs[address] = graph.placeholder(f"owned{len(places)}")
            places.append(Place(by_address[address], vector.numel(), str(vector.dtype)))
            vectors.append(vector)
        with graph.inserting_before(node):
            start = tensor.storage_offset()
            part = graph.call_function(aten.slice.Tensor, (inputs[address], 0, start, start + tensor.numel()))
            view = graph.call_function(aten.view.default, (part, list(tensor.shape)))
        node.replace_all_uses_with(view)
        graph.erase_node(node)
    return places, vectors


def _compare(
    library: Library, run: Callable[..., tuple[Tensor, ...]], args: Sequence[object], tensors: list[Tensor]
) -> None:
    """Whether the library does what the step does; leaves the owner's tensors as they were.

    Products are exact meanwhile: with rounded factors, a last digit that differs would come out as one of the third.

    Raises:
        ValueError: it does not.
    """
    owned = library.owned
    with matmul.exact(), _unchanged(owned):
        got = [*library(tensors), *(t.clone() for t in owned)]
    with matmul.exact(), _unchanged(owned):
        wanted = [*run(*args), *(t.clone() for t in owned)]
    for a, b in zip((t.double() for t in got), (t.double() for t in wanted), strict=True):
        if a.numel() and not _alike(a, b):
            off, scale = float((a - b).abs().max()), float(b.abs().max())
            raise ValueError(f"compiled, a step gives other numbers: off by {off:g} of {scale:g}")


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same but for rounding, and what a step makes of it."""
    off, scale = (a - b).abs(), float(b.abs().max()) + 1e-6
    strays = int((~(off <= TOLERANCE * scale)).sum())  # NaN is one
    return strays <= STRAYS * off.numel() and bool(off.max() <= STRAY_TOLERANCE * scale)


@contextlib.contextmanager
def _unchanged(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Whatever happens to tensors is undone afterwards, except to those that are too large to be a step's own."""
    whole = (_whole(t) for t in tensors if t.untyped_storage().nbytes() <= LARGEST)
    vectors = {vector.data_ptr(): vector for vector in whole}
    before = {address: vector.clone() for address, vector in vectors.items()}
    try:
        yield
    finally:
        for address, vector in vectors.items():
            vector.copy_(before[address])


def _whole(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is in, as a vector."""
    base = tensor.detach()
    size = base.untyped_storage().nbytes() // base.element_size()
    return base.as_strided((size,), (1,), 0)
