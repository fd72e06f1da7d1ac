"""Tensors in shared memory, seen from two processes."""

import os
import subprocess
import sys

import pytest
import torch

from erlcli.engine.shared import ALIGN, SharedBlock
from erlcli.engine.worker import slot, slotted

LAYOUT = {
    "obs": ((3, 2, 5), torch.float32),
    "image": ((7,), torch.uint8),
    "flag": ((3, 2), torch.bool),
    "scalar": ((), torch.float64),
    "count": ((2,), torch.int64),
    "half": ((3,), torch.bfloat16),
}


@pytest.fixture
def block():
    made = SharedBlock.create(LAYOUT)
    yield made
    if made.tensors:
        made.close()


def test_tensors_have_their_shapes_dtypes_and_are_zero(block):
    assert list(block.tensors) == list(LAYOUT)
    for name, (shape, dtype) in LAYOUT.items():
        found = block.tensors[name]
        assert found.shape == shape and found.dtype == dtype and not found.any()


def test_tensors_do_not_overlap(block):
    for i, tensor in enumerate(block.tensors.values()):
        tensor.fill_(i + 1 if tensor.dtype != torch.bool else True)
    for i, tensor in enumerate(block.tensors.values()):
        assert (tensor == (i + 1 if tensor.dtype != torch.bool else True)).all()


def test_tensors_start_on_cache_lines(block):
    starts = sorted(tensor.data_ptr() for tensor in block.tensors.values())
    assert all((start - starts[0]) % ALIGN == 0 for start in starts)


def test_what_one_side_writes_the_other_reads(block):
    other = SharedBlock.attach(os.dup(block.fd), LAYOUT)
    block.tensors["obs"].copy_(torch.arange(30.0).view(3, 2, 5))
    assert torch.equal(other.tensors["obs"], block.tensors["obs"])
    other.tensors["flag"][1, 1] = True
    assert block.tensors["flag"].nonzero().tolist() == [[1, 1]]
    other.close()


def test_another_process_reaches_it_by_the_inherited_descriptor(block):
    """Without torch in the child: the layout is plain bytes, the first tensor at the start."""
    block.tensors["obs"].fill_(1.5)
    code = (
        "import mmap, struct, sys; m = mmap.mmap(int(sys.argv[1]), 0);"
        "print(struct.unpack_from('f', m, 4)[0]); struct.pack_into('f', m, 8, 42.0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(block.fd)], pass_fds=[block.fd], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1.5"
    assert block.tensors["obs"].flatten()[2].item() == 42.0


def test_the_descriptor_is_not_inherited_by_chance(block):
    code = "import os, sys; os.fstat(int(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(block.fd)], close_fds=False, capture_output=True, text=True)
    assert done.returncode != 0 and "Bad file descriptor" in done.stderr


def test_nothing_has_a_name_that_could_be_left_behind(block):
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    another = SharedBlock.create(LAYOUT)
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert after <= before
    another.close()


def test_closing_gives_up_the_descriptor_and_keeps_tensors_that_are_held(block):
    held, fd = block.tensors["obs"], block.fd
    held.fill_(3.0)
    block.close()
    assert not block.tensors
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)
    assert (held == 3.0).all()


def test_a_layout_larger_than_the_block_is_refused(block):
    """Or a worker of another recipe would write beyond the end."""
    with pytest.raises(ValueError, match="length"):
        SharedBlock.attach(block.fd, {**LAYOUT, "more": ((1000,), torch.float64)})


def test_slots_are_whole_layouts_of_their_own():
    block = SharedBlock.create(slotted(LAYOUT, 2))
    first, second = slot(block, 0), slot(block, 1)
    assert set(first) == set(second) == set(LAYOUT)
    first["obs"].fill_(1.0)
    assert not second["obs"].any()
    block.close()


def test_names_with_slashes_and_colons_survive_slots():
    layout = {"extras/log_prob": ((2,), torch.float32), "a:b": ((1,), torch.int64)}
    block = SharedBlock.create(slotted(layout, 12))
    assert set(slot(block, 1)) == set(slot(block, 11)) == set(layout)
    slot(block, 1)["a:b"].fill_(7)
    assert slot(block, 11)["a:b"].item() == 0
    block.close()
