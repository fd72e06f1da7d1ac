"""CUDA graphs: the kernels of a function are recorded once, and from then on launched together.

On a GPU a small network is bound by launching its operations one by one; a graph launches thousands at the price of
one. What is recorded is the work on the device and nothing else: Python does not run again. A function to be captured
therefore

* reads and writes tensors at fixed addresses only: a number that changes between two calls is a device scalar that is
  filled in place, never a Python number;
* has fixed shapes, and never looks at a number on the device (`item`, `nonzero`, `bool(tensor)`, indexing by a mask);
* draws from generators that were named, which go on from replay to replay;
* changes nothing on the host that its callers rely on: counters are theirs.

A function is run as it is where there is no GPU, so that there is one way through the code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, ParamSpec, TypeVar

import torch

from erlcli.core import trees

P = ParamSpec("P")
R = TypeVar("R")


class Recorder(ABC):
    """How work on a device is recorded."""

    @abstractmethod
    def warm_up(self, run: Callable[[], R]) -> R:
        """Run once as a capture will, so that libraries have set themselves up and memory is there."""

    @abstractmethod
    def record(self, run: Callable[[], R], generators: Sequence[torch.Generator]) -> tuple[Callable[[], object], R]:
        """Record without executing.

        Args:
            run: what to record.
            generators: of its random draws.

        Returns:
            What executes it, and what `run` returned, whose tensors every execution writes anew.

        Raises:
            RuntimeError: it can't be captured.
        """


class CudaRecorder(Recorder):
    """CUDA graphs.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Autograd ties a parameter's gradient to the stream that it was first used on: the same for all that is run.
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm_up(self, run: Callable[[], R]) -> R:
        """See `Recorder`; what comes after on the current stream waits for it."""
        outside = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(outside)
        with torch.cuda.stream(self._stream):
            result = run()
        outside.wait_stream(self._stream)
        return result

    def record(self, run: Callable[[], R], generators: Sequence[torch.Generator]) -> tuple[Callable[[], object], R]:
        """See `Recorder`."""
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        drawn = [*generators, torch.cuda.default_generators[self.device.index or 0]]
        states = [generator.clone_state() for generator in drawn]
        try:
            with (
                torch.cuda.stream(torch.cuda.current_stream(self.device)),  # comes back to it if a capture breaks off
                # Other threads may do to the GPU what a capture must not.
                torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
            ):
                result = run()
        except Exception:
            # A capture that broke off may leave a generator in the belief that it is still going on.
            for generator, state in zip(drawn, states, strict=True):
                generator.graphsafe_set_state(state)
            raise
        return graph.replay, result


class Captured(Generic[P, R]):
    """A function that is captured once it has run, and replayed from then on.

    The first call is the warm-up, the second one records and replays: each of them does once what was asked for, so
    that nothing has to be undone. Arguments at other addresses begin anew.

    Args:
        name: of the function, for messages.
        run: the function; see the module's docstring.
        recorder: None runs it as it is.
        generators: of its random draws.
        tell: called with what became of it: the name, and the reason if it is not captured.
    """

    def __init__(
        self,
        name: str,
        run: Callable[P, R],
        recorder: Recorder | None,
        generators: Sequence[torch.Generator],
        tell: Callable[[str, str | None], None],
    ) -> None:
        self.name, self._run, self._recorder = name, run, recorder
        self._generators, self._tell = generators, tell
        self._addresses: tuple[int, ...] | None = None
        self._recording: tuple[Callable[[], object], R] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns; tensors in it are overwritten by the next call."""
        if self._recorder is None:
            return self._run(*args, **kwargs)
        addresses = tuple(tensor.data_ptr() for tensor in trees.tensors((args, kwargs)))
        if addresses != self._addresses:
            self.forget()
            self._addresses = addresses
            return self._recorder.warm_up(lambda: self._run(*args, **kwargs))
        if self._recording is None:
            try:
                self._recording = self._recorder.record(lambda: self._run(*args, **kwargs), self._generators)
            except Exception as error:  # a fault of the function's own shows itself again at once
                self._recorder = None
                reason = error.__context__ or error  # what ended the capture, rather than that it ended
                self._tell(self.name, str(reason).strip().partition("\n")[0])
                return self._run(*args, **kwargs)
            self._tell(self.name, None)
        replay, result = self._recording
        replay()
        return result

    def forget(self) -> None:
        """Something that it reads has moved, or a number in it has changed: warm up and record anew."""
        self._addresses = self._recording = None


class Graphs:
    """Captures the functions of a run.

    Args:
        recorder: None captures nothing.
        tell: called with the name of a function that was captured, or with its name and the reason why it wasn't.
    """

    def __init__(
        self, recorder: Recorder | None = None, tell: Callable[[str, str | None], None] = lambda name, reason: None
    ) -> None:
        self._recorder, self._tell = recorder, tell

    def capture(
        self,
        name: str,
        run: Callable[P, R],
        generators: Sequence[torch.Generator] = (),
        refusal: str | None = None,
    ) -> Captured[P, R]:
        """`run`, to be captured unless there is a reason not to.

        Args:
            name: of the function, for messages.
            run: the function; see the module's docstring.
            generators: of its random draws.
            refusal: why it can't be captured; None if it can.
        """
        recorder = self._recorder
        if recorder is not None and refusal is not None:
            self._tell(name, refusal)
            recorder = None
        return Captured(name, run, recorder, generators, self._tell)
