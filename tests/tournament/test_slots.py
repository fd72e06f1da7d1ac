"""Slots: what options mean, and what this machine doesn't have."""

import sys
from types import SimpleNamespace

import pytest

from erlcli.errors import RecipeError
from erlcli.tournament import slots
from erlcli.tournament.slots import Gpu, choose, lay_out, more, parse_gpus, resized, sharing, shrink

HERE = [Gpu(i, str(i), "H100") for i in range(4)]


@pytest.mark.parametrize(
    ("text", "expected"), [("0", [0]), ("0-3", [0, 1, 2, 3]), ("2, 0-1", [0, 1, 2]), ("1,1", [1]), ("7-7", [7])]
)
def test_lists_of_gpus(text, expected):
    assert parse_gpus(text) == expected


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "0-", "cuda:0"])
def test_what_is_no_list_of_gpus(text):
    with pytest.raises(RecipeError, match="not a list of GPUs"):
        parse_gpus(text)


@pytest.mark.parametrize(
    ("count", "gpus", "per_gpu", "here", "expected"),
    [
        (2, None, 1, HERE, ["cpu:0", "cpu:1"]),
        (None, "0-1", 1, HERE, ["cuda:0", "cuda:1"]),
        (None, "3", 2, HERE, ["cuda:3/0", "cuda:3/1"]),
        (None, None, 1, HERE, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        (None, None, 1, [], ["cpu:0", "cpu:1", "cpu:2"]),
    ],
)
def test_what_options_mean(count, gpus, per_gpu, here, expected):
    assert choose(count, gpus, per_gpu, here, 3) == expected


def test_gpus_that_are_not_there_are_named_with_what_is():
    with pytest.raises(RecipeError) as caught:
        choose(None, "0-7", 1, HERE, 16)
    error = caught.value
    assert error.exit_code == 2
    assert error.message == "--gpus 0-7: not on this machine: 4-7"
    assert "0 (H100), 1 (H100)" in error.expected
    assert "--gpus 0-3" in error.remedy
    with pytest.raises(RecipeError) as caught:
        choose(None, "0-7", 1, [], 2)
    assert "no" in caught.value.expected
    assert "--slots 2" in caught.value.remedy


def test_cores_are_dealt_out():
    slots = lay_out(["cpu:0", "cpu:1", "cpu:4"], range(8))
    assert [slot.cores for slot in slots] == [(0, 1), (2, 3, 4), (5, 6, 7)]
    assert [slot.gpu for slot in slots] == [None] * 3
    crowded = lay_out(["cuda:0/0", "cuda:0/1", "cuda:1/0"], (3, 5))
    assert [slot.cores for slot in crowded] == [(3,), (5,), (3,)]
    assert [slot.gpu for slot in crowded] == [0, 0, 1]


@pytest.mark.parametrize("names", [["gpu:1"], ["cpu:0", "cpu:0"], ["cuda:0/x"], ["cpu:-1"], [""]])
def test_what_is_no_slot(names):
    with pytest.raises(RecipeError, match="slot"):
        lay_out(names, (0,))


def test_the_slots_of_the_best_stay():
    names = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert shrink(names, {"cpu:0": 3, "cpu:1": 1, "cpu:3": 2}, 2) == ["cpu:1", "cpu:3"]
    assert shrink(names, {"cpu:3": 1}, 3) == ["cpu:0", "cpu:1", "cpu:3"]
    assert shrink(names, {}, 0) == []


def test_so_many_slots_keep_the_best_or_add_cores():
    assert resized(["cpu:0", "cpu:1", "cpu:2"], {"cpu:0": 3, "cpu:1": 1}, 1) == ["cpu:1"]
    assert resized(["cpu:1"], {}, 3) == ["cpu:1", "cpu:0", "cpu:2"]
    assert resized([], {}, 2) == ["cpu:0", "cpu:1"]
    assert resized(["ray:1"], {}, 2) == ["ray:1", "ray:0"]
    assert resized(["cuda:0", "cuda:1"], {"cuda:1": 1}, 1) == ["cuda:1"]
    with pytest.raises(RecipeError, match="more than the tournament has on its GPUs"):
        resized(["cuda:0"], {}, 2)


def test_who_shares_a_gpu():
    names = ["cuda:0/0", "cuda:0/1", "cuda:1", "cuda:10", "cpu:0"]
    assert sharing(names, "cuda:0/1") == ["cuda:0/0", "cuda:0/1"]
    assert sharing(names, "cuda:1") == ["cuda:1"]
    assert sharing(names, "cpu:0") == sharing(names, "ray:0") == []


def test_slots_of_a_cluster_are_numbered():
    assert more([], 3) == ["ray:0", "ray:1", "ray:2"]
    assert more(["ray:1", "ray:3"], 4) == ["ray:1", "ray:3", "ray:0", "ray:2"]


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("-1", []),
        ("", []),
        ("1,-1,0", ["1"]),
        ("GPU-a, 0", ["GPU-a", "0"]),
        ("7", []),
    ],
)
def test_gpus_are_those_that_cuda_would_take(visible, found, monkeypatch):
    """It reads its variable up to the first entry that is no device; -1 hides all."""
    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda index: f"card {index}",
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.visible for gpu in slots.gpus()] == found
