"""Keeps what exporters print away from the user, and at hand for when they fail."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO


@dataclass
class Chatter:
    """What was printed.

    Attributes:
        text: filled in when the block is left.
    """

    text: str = ""


@contextlib.contextmanager
def quiet() -> Iterator[Chatter]:
    """Nothing written inside the block reaches stdout or stderr: not by print, logging, warnings, or native code.

    Log handlers and C++ hold on to the file descriptors, so these are redirected, for the whole process.
    """
    chatter = Chatter()
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        _flush()
        saved = {fd: os.dup(fd) for fd in (1, 2)}
        try:
            for fd in saved:
                os.dup2(file.fileno(), fd)
            with contextlib.ExitStack() as stack:
                # Streams that go elsewhere (a notebook's, a test's). Others stay: handlers made inside may keep them.
                if not _writes_to(sys.stdout, 1):
                    stack.enter_context(contextlib.redirect_stdout(file))
                if not _writes_to(sys.stderr, 2):
                    stack.enter_context(contextlib.redirect_stderr(file))
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                yield chatter
        finally:
            _flush()
            for fd, copy in saved.items():
                os.dup2(copy, fd)
                os.close(copy)
            file.seek(0)
            chatter.text = file.read()


def _writes_to(stream: TextIO, fd: int) -> bool:
    try:
        return stream.fileno() == fd
    except (AttributeError, OSError, ValueError):
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed:
            stream.flush()
