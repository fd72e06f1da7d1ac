"""Steps as machine code: when they are compiled, when they are left alone, and that both do the same."""

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from erlcli.algorithms.config.dqn import DQNConfig
from erlcli.algorithms.config.ppo import PPOConfig
from erlcli.core import machine_code, matmul, trees
from erlcli.core.compiled import Compiler
from erlcli.core.machine_code import Library, tracing
from erlcli.core.optim import Optimizer
from erlcli.core.schedule import constant
from erlcli.core.toolchain import cxx

needs_compiler = pytest.mark.skipif(cxx() is None, reason="no C++ compiler here")
STRANGER = torch.ones(3)


@dataclass(frozen=True)
class Rows:
    """Arguments of a step."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None


class Fit:
    """A line through points: an owner with weights, an optimiser, a counter and a schedule's number."""

    def __init__(self):
        torch.manual_seed(0)
        self.config = DQNConfig()
        self.net = nn.Linear(3, 1)
        self.optimizer = Optimizer({"net": self.net}, eps=1e-3, max_grad_norm=0.5)
        self.rate = Optimizer.scalar(torch.device("cpu")).fill_(0.1)
        self.seen = torch.zeros((), dtype=torch.int64)

    def step(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """One step on the squared error."""
        error = self.net(rows.x).squeeze(-1) - rows.y
        if rows.weight is not None:
            error = error * rows.weight
        loss = error.square().mean()
        self.optimizer.apply(loss, self.rate)
        self.seen += 1
        return loss.detach(), error.detach()

    def strange(self, rows: Rows) -> tuple[Tensor]:
        """Reads a tensor that is nobody's."""
        return ((rows.x * STRANGER).sum(),)

    def branching(self, rows: Rows) -> tuple[Tensor]:
        """Looks at the number of rows."""
        return (rows.x.sum() * (2.0 if len(rows.y) > 7 else 1.0),)

    def wrong(self, rows: Rows) -> tuple[Tensor]:
        """Does something else while it is traced."""
        return (rows.x.sum() * (2.0 if tracing() else 1.0),)

    def state(self):
        optimizer = self.optimizer
        flat = (optimizer.flat, optimizer.exp_avg, optimizer.exp_avg_sq, optimizer.adam_steps, self.seen)
        return [t.clone() for t in flat]


def rows(count, seed=0):
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return Rows(x, x @ torch.tensor([1.0, -2.0, 0.5]))


def in_directory(path, told):
    return Compiler(path, lambda name, reason: told.append(reason))


@needs_compiler
def test_a_step_is_compiled_once_and_does_what_it_does_without(tmp_path):
    plain, fit, told = Fit(), Fit(), []
    step = in_directory(tmp_path, told).compile("step", Fit.step, rows_vary=True)
    before = fit.state()
    for count in (8, 7, 31):
        wanted, got = plain.step(rows(count, count)), step(fit, rows(count, count))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)
    for a, b, old in zip(fit.state(), plain.state(), before, strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.equal(a, old)
    assert int(fit.seen) == 3 and told == [None] and not tracing()
    maker = fit.state()

    # A number of a schedule is read from its tensor, at once.
    for one in (plain, fit):
        one.rate.fill_(0.0)
    old = fit.optimizer.flat.clone()
    step(fit, rows(8))
    assert torch.equal(fit.optimizer.flat, old)

    # Another schedule is no reason for another library, nor for news.
    fit.config = DQNConfig(learning_rate=constant(0.5))
    step(fit, rows(8))
    assert told == [None]

    # How a tensor lies in memory makes no difference.
    columns = rows(8)
    turned = replace(columns, x=columns.x.T.contiguous().T)
    torch.testing.assert_close(step(fit, turned), step(fit, columns))

    # Whoever comes next loads it, and has the bits of the one that made it.
    (library,) = (p for p in tmp_path.iterdir() if p.is_dir())
    (made,) = library.glob(Library.CODE)
    again, loader = in_directory(tmp_path, told).compile("step", Fit.step, rows_vary=True), Fit()
    for count in (8, 7, 31):
        again(loader, rows(count, count))
    assert all(torch.equal(a, b) for a, b in zip(loader.state(), maker, strict=True))
    assert made.exists() and told == [None] * 2

    # What is damaged is made anew, by another name.
    places = (library / Library.PLACES).read_text()
    (library / Library.PLACES).write_text(places[:-1])
    again = in_directory(tmp_path, told).compile("step", Fit.step, rows_vary=True)
    again(loader, rows(9))
    assert (library / Library.PLACES).read_text() == places and told == [None] * 3
    assert not made.exists() and len(list(library.glob(Library.CODE))) == 1

    # So is what was made for other tensors, though the linker has loaded that by the same path before.
    other = Fit()
    other.seen = torch.zeros(3, dtype=torch.int64)
    again = in_directory(tmp_path, told).compile("step", Fit.step, rows_vary=True)
    again(other, rows(9))
    assert other.seen.tolist() == [1, 1, 1] and told == [None] * 4


def refused(step, tmp_path):
    """Why it is not compiled, and what it returns."""
    told, fit = [], Fit()
    compiled = in_directory(tmp_path, told).compile("step", step, rows_vary=True)
    results = [compiled(fit, rows(count))[0] for count in (8, 7)]
    (reason,) = told
    assert not [p for p in tmp_path.iterdir() if p.is_dir()], "something was left behind"
    return reason, results


@needs_compiler
def test_a_step_that_reads_what_is_nobodys_is_left_alone(tmp_path):
    reason, results = refused(Fit.strange, tmp_path)
    assert reason == "it reads a tensor (3,) that is neither its owner's nor an argument"
    torch.testing.assert_close(results, [rows(8).x.sum(), rows(7).x.sum()])


@needs_compiler
def test_a_step_that_looks_at_the_number_of_rows_is_left_alone(tmp_path):
    reason, results = refused(Fit.branching, tmp_path)
    assert reason.startswith("what it does depends on the number of rows: ")
    torch.testing.assert_close(results, [2.0 * rows(8).x.sum(), rows(7).x.sum()])


@needs_compiler
def test_a_step_that_would_do_something_else_is_left_alone(tmp_path):
    reason, results = refused(Fit.wrong, tmp_path)
    assert reason.startswith("compiled, a step gives other numbers: off by ")
    torch.testing.assert_close(results, [rows(8).x.sum(), rows(7).x.sum()])


@pytest.mark.parametrize(
    ("strays", "off", "alike"),
    [
        (0, 0.0, True),
        (1000, 9e-4, True),  # rounding, everywhere
        (10, 2e-2, True),  # Adam's first step of biases without a gradient
        (11, 2e-2, False),
        (1, 4e-2, False),
        (1, float("nan"), False),
    ],
)
def test_rounding_may_turn_a_few_signs(strays, off, alike):
    wanted = torch.linspace(-1.0, 1.0, 1000, dtype=torch.float64)
    got = wanted.clone()
    got[:strays] += off
    assert machine_code._alike(got, wanted) is alike
    assert not machine_code._alike(torch.tensor([1.002]), torch.tensor([1.0]))  # a loss is one number


@pytest.mark.parametrize("hindrance", ["no_compiler", "no_directory", "compiler_fails"])
def test_without_means_to_compile_the_step_is_done_all_the_same(hindrance, tmp_path, monkeypatch):
    directory, expected = tmp_path / "cache", "no C++ compiler here"
    directory.mkdir()
    if hindrance == "no_compiler":
        monkeypatch.setenv("CXX", "/nowhere/c++")
    elif hindrance == "no_directory":
        directory.rmdir()
        directory.write_text("")
        expected = "File exists"
    else:
        monkeypatch.setattr(machine_code, "cxx", lambda: "c++")

        def fail(*args):
            raise RuntimeError("it failed\nlong output")

        monkeypatch.setattr(machine_code, "_compile", fail)
        expected = "it failed"
    told, fit, plain = [], Fit(), Fit()
    step = in_directory(directory, told).compile("step", Fit.step)
    for seed in range(2):
        torch.testing.assert_close(step(fit, rows(8, seed)), plain.step(rows(8, seed)))
    assert all(torch.equal(a, b) for a, b in zip(fit.state(), plain.state(), strict=True))
    (reason,) = told
    assert expected in reason and "\n" not in reason


def test_a_refusal_is_told_and_nothing_without_a_directory_is():
    told, fit = [], Fit()
    Compiler(None, lambda name, reason: told.append(reason)).compile("step", Fit.step, refusal="no")(fit, rows(4))
    assert told == [] and int(fit.seen) == 1
    compiler = Compiler(Path("/nowhere"), lambda name, reason: told.append(reason))
    compiler.compile("step", Fit.step, refusal="it draws")(fit, rows(4))
    assert told == ["it draws"] and int(fit.seen) == 2


def key_of(config, tmp_path, facts=(), rows_vary=False, example=None):
    """The name of the library that a step of an owner with this config would have."""
    fit = Fit()
    fit.config = config
    step = Compiler(tmp_path).compile("step", Fit.step, facts, rows_vary=rows_vary)
    step._config = config
    return step._key(fit, list(trees.tensors([example or rows(8)])))


def test_a_library_is_known_by_all_that_decides_what_it_does(tmp_path, monkeypatch):
    config = PPOConfig()
    key = key_of(config, tmp_path)
    assert key == key_of(PPOConfig(), tmp_path)
    # The values of schedules are read from tensors, but for whether there is any.
    assert key == key_of(PPOConfig(learning_rate=constant(0.5)), tmp_path)
    others = [
        key_of(PPOConfig(entropy_coef=constant(0.01)), tmp_path),
        key_of(PPOConfig(value_coef=0.25), tmp_path),
        key_of(DQNConfig(), tmp_path),
        key_of(config, tmp_path, facts=(3,)),
        key_of(config, tmp_path, example=rows(9)),
        key_of(config, tmp_path, rows_vary=True),
    ]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        others.append(key_of(config, tmp_path))
    finally:
        torch.set_num_threads(threads)
    matmul.choose(wide=False, rounded=True)
    try:
        others.append(key_of(config, tmp_path))
    finally:
        matmul.choose(wide=False)
    assert len({key, *others}) == 9
    assert key_of(config, tmp_path, rows_vary=True, example=rows(9)) == others[5]


def test_old_libraries_and_what_killed_compilers_left_are_removed(tmp_path):
    for name, days in (("used", 80), ("unused", 100), ("making-new", 0.5), ("making-old", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "step.so").touch()
        os.utime(tmp_path / name, (0, time.time() - days * 86400))
    machine_code._forget_old(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["making-new", "used"]
