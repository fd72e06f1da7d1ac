"""Memory in a process of its own, since how it is kept can't be taken back."""

import ctypes
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from erlcli.core import pages

MIB = 2**20

def touched():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        layers = [torch.zeros(40 * MIB, dtype=torch.uint8) for _ in range(4)]
        del layers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // MIB

first = touched()
pages.keep_freed()
touched()
print(first, touched())
before = resident()
kept = pages.zeros((256 * MIB,), torch.uint8, torch.device("cpu"))
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's alone")
def test_what_was_freed_is_used_again_and_what_is_not_used_yet_takes_no_memory():
    out = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    before, after, lazily = (int(number) for number in out.split())
    assert before > 1000  # pages that came from the system, of 2 MiB at most, for 3,200 MiB
    assert after < before / 32
    assert lazily < 64  # MiB of 256
