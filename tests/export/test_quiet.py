import logging
import os
import subprocess
import sys
import warnings

import pytest

from erlcli.export.quiet import quiet


def test_nothing_gets_out_and_everything_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.__stderr__)  # as made before anything is redirected
    log = logging.getLogger("chatty")
    log.addHandler(handler)
    with quiet() as chatter:
        print("from print")
        print("from stderr", file=sys.stderr)
        log.warning("from logging")
        os.write(1, b"from native code\n")
        os.write(2, b"from native errors\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        warnings.warn("from a warning", stacklevel=1)
    log.removeHandler(handler)
    assert capfd.readouterr() == ("", "")
    for source in ("print", "stderr", "logging", "native code", "native errors", "a child"):
        assert f"from {source}\n" in chatter.text


def test_streams_are_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(ValueError), quiet() as chatter:
        print("last words")
        raise ValueError
    print("audible")
    os.write(2, b"too\n")
    assert capfd.readouterr() == ("audible\n", "too\n")
    assert chatter.text == "last words\n"
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_handlers_made_inside_work_afterwards() -> None:
    code = """
import logging, sys
from erlcli.export.quiet import quiet
with quiet():
    logging.getLogger().addHandler(logging.StreamHandler())
    logging.warning("unheard")
logging.warning("heard")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "heard\n")
