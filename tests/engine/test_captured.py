"""Training whose iterations are captured: nothing looks at the device, and replays are what Python would have done.

There need not be a GPU: a tape of the operations, run again on the same memory, has what makes CUDA graphs treacherous.
Whatever Python computes while it is recorded is a constant from then on.

Dimension letters: T time steps, N environments.
"""

import inspect

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from erlcli.core.graphs import CudaRecorder, Graphs, Recorder
from erlcli.core.host_reads import READS, HostReads
from erlcli.core.optim import Optimizer
from erlcli.core.readback import Readback
from erlcli.engine import build
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.collector import Collector
from erlcli.engine.episodes import EpisodeTracker
from erlcli.engine.learner import assemble
from erlcli.envs.config import env_config
from erlcli.envs.torch_vec import TorchVecEnv
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import EnvError
from erlcli.recipe.load import validate
from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout
from erlcli.runs.writer import EventLog, Heartbeat

T, N = 6, 5
CPU = torch.device("cpu")
PPO = {
    "name": "ppo", "batch_size": 8, "epochs": 2, "clip_value": 0.2,
    "learning_rate": {"kind": "linear", "start": 1e-2, "end": 1e-3},
    "clip_range": {"kind": "linear", "start": 0.3, "end": 0.1},
    "entropy_coef": {"kind": "cosine", "start": 0.1, "end": 0.0},
}  # fmt: skip
KINDS = {
    "ppo": PPO,
    "adaptive": {**PPO, "learning_rate": 1e-3, "adaptive_kl": 1e-3},
    "a2c": {"name": "a2c", "learning_rate": PPO["learning_rate"], "entropy_coef": PPO["entropy_coef"]},
    "sde": {**PPO, "std": "sde", "log_std": -2.0, "sde_interval": 4},
}
EARLY = {"warmup_steps": T * N, "batch_size": 8}
KINDS_OFF = {"dqn": {"name": "dqn", **EARLY}, "sac": {"name": "sac", **EARLY}, "ddpg": {"name": "ddpg", **EARLY}}
every_kind = pytest.mark.parametrize("kind", sorted(KINDS))


class Tape(TorchDispatchMode):
    """Writes down operations, and undoes them afterwards: a graph is recorded without being executed."""

    def __init__(self, generators):
        super().__init__()
        self.operations, self.before = [], []
        self.generators = [(generator, generator.get_state()) for generator in generators]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in READS:
            raise RuntimeError(f"{func} while it is recorded")
        if func._schema.is_mutable:
            self.before += [(t, t.clone()) for t in tensors((args, kwargs))]
        out = func(*args, **kwargs)
        places = {t.untyped_storage().data_ptr() for t in tensors((args, kwargs))}
        view = any(t.untyped_storage().data_ptr() in places for t in tensors(out))
        if func._schema.is_mutable or not view:
            self.operations.append((func, args, kwargs, out))
        return out

    @torch.no_grad()
    def undo(self):
        for place, value in reversed(self.before):
            place.copy_(value)
        for generator, state in self.generators:
            generator.set_state(state)
        self.before.clear()

    @torch.no_grad()
    def replay(self):
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for place, value in zip(tensors(out), tensors(again), strict=True):
                    place.copy_(value)


class TapeRecorder(Recorder):
    """A `Tape` for a CUDA graph."""

    def __init__(self):
        self.warmed = self.recorded = self.replayed = 0

    def warm_up(self, run):
        self.warmed += 1
        return run()

    def record(self, run, generators):
        tape = Tape(generators)
        try:
            with tape:
                result = run()
        finally:
            tape.undo()
        self.recorded += 1

        def replay():
            self.replayed += 1
            tape.replay()

        return replay, result


def tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def recipe_of(kind, num_envs=N, env="PointChasing-v0", network=None, log=None, **settings):
    return validate(
        {
            "train": {"total_steps": 1_000_000, "device": "cpu"},
            "env": {"id": f"torch/{env}", "num_envs": num_envs, "max_episode_steps": 4},
            "algorithm": {"rollout_length": T, **(KINDS | KINDS_OFF)[kind], **settings},
            "network": {"hidden": [8], **(network or {})},
            "normalize": {"obs": True, "reward": True},
            "log": log or {},
        },
        "test",
    )


class Training:
    """An environment, a policy that acts in it and learns, and the episodes: what an iteration consists of."""

    def __init__(self, kind="ppo", graphs=None, device=CPU, num_envs=N, **settings):
        recipe = recipe_of(kind, num_envs, **settings)
        graphs = graphs or Graphs()
        self.env = make_vec_env(env_config(recipe.env, num_envs, None, str(device)))
        self.algorithm = build.algorithm(recipe, self.env.spec, device, graphs=graphs)
        policy = self.algorithm.policy
        self.collector = Collector(self.env, policy, T, 0, lambda phase: None, graphs)
        layout = rollout_layout(self.env.spec, policy, T, num_envs)
        self.buffers = Buffers({k: torch.zeros(s, dtype=d, device=device) for k, (s, d) in layout.items()})
        self.episodes = EpisodeTracker(num_envs)
        self.metrics = []
        self.restart(0)

    def restart(self, seed):
        self.episodes.restart()
        self.algorithm.restart(seed)
        self.collector.restart(seed)

    def iterate(self, progress):
        self.collector.collect(self.buffers)
        rollout = self.buffers.rollout(0)
        self.episodes.add(rollout)
        return self.algorithm.update(rollout, progress)

    def run(self, iterations, start=0):
        for k in range(start, start + iterations):
            self.metrics.append({name: float(value) for name, value in self.iterate(k / 20).items()})

    def everything(self):
        state = {"policy": self.algorithm.policy.state_dict(), **self.algorithm.state_dict()}
        state |= {"episodes": self.episodes.numbers(), "buffers": dict(vars(self.buffers))}
        return [t.clone() for t in tensors(state)], [leaf for leaf in tree_flatten(state)[0] if isinstance(leaf, int)]


def equal(first, second):
    (tensors_1, numbers_1), (tensors_2, numbers_2) = first.everything(), second.everything()
    return (
        len(tensors_1) == len(tensors_2)
        and all(torch.equal(a, b) for a, b in zip(tensors_1, tensors_2, strict=True))
        and numbers_1 == numbers_2
        and first.metrics == second.metrics
    )


def reads_of(iterate):
    """What waits for the device in an iteration, but for the checks of numbers that have come from it."""
    checks = set()
    for check in (Optimizer._check, TorchVecEnv._check):
        lines, first = inspect.getsourcelines(check)
        checks |= {f"{inspect.getsourcefile(check)}:{first + i}" for i in range(len(lines))}
    with HostReads() as reads:
        iterate()
    return [str(read) for read in reads.found if read.where not in checks]


@every_kind
def test_an_iteration_never_looks_at_the_device(kind):
    training = Training(kind)
    training.run(1)
    assert reads_of(lambda: training.iterate(0.1)) == []


def test_the_loop_never_looks_at_the_device_between_restart_points(tmp_path, monkeypatch):
    monkeypatch.setattr(Readback, "ready", property(lambda self: False))
    layout = RunLayout(tmp_path / "run")
    layout.create()
    beat, events = Heartbeat(layout, "learner"), EventLog(layout, "learner", 1)
    loop, sampler = assemble(layout, recipe_of("ppo", log={"every": 1}), 1, lambda: False, beat, events, CPU)
    try:
        loop._restart()
        loop._iterate()
        assert reads_of(loop._iterate) == []
        assert loop.counters.steps == 2 * T * N and read(layout.metrics) == []
        loop.rows.sync()
        assert [row["updates"] for row in read(layout.metrics)] == [8, 16]
    finally:
        sampler.close()
        beat.close()


def test_a_device_that_is_behind_tells_of_environments_one_rollout_late(monkeypatch):
    monkeypatch.setattr(Readback, "ready", property(lambda self: False))
    env = Training().env
    env._health[3] = float("nan")
    env.verify()
    with pytest.raises(EnvError, match="environment 3 of 5"):
        env.verify()


def test_a_look_at_the_kl_is_found():
    training = Training(target_kl=1e9)
    assert any("ppo.py" in read for read in reads_of(lambda: training.iterate(0.1)))


@every_kind
def test_replays_are_what_python_would_have_done(kind):
    recorder = TapeRecorder()
    eager, captured = Training(kind), Training(kind, Graphs(recorder))
    for training in (eager, captured):
        training.run(6)
    assert equal(eager, captured)
    assert (recorder.warmed, recorder.recorded, recorder.replayed) == (2, 2, 10)
    assert len({m["schedule/learning_rate"] for m in captured.metrics}) > 1
    assert captured.episodes.now().episodes > N


def test_a_restart_and_another_recipe_reach_into_graphs():
    recorder = TapeRecorder()
    eager, captured = Training(), Training(graphs=Graphs(recorder))
    for training in (eager, captured):
        training.run(3)
        training.restart(7)
        config = training.algorithm.config
        constant = type(config.learning_rate)
        changed = {"learning_rate": constant.model_validate(3e-4), "clip_range": constant.model_validate(0.01)}
        training.algorithm.config = config.model_copy(update=changed)
        training.run(3, start=3)
    assert equal(eager, captured) and recorder.recorded == 2
    assert captured.metrics[-1]["schedule/learning_rate"] == 3e-4


def test_loaded_state_reaches_into_graphs():
    first, recorder = Training(), TapeRecorder()
    first.run(2)
    second = Training(graphs=Graphs(recorder))
    second.run(4)
    second.algorithm.policy.load_state_dict(first.algorithm.policy.state_dict())
    second.algorithm.load_state_dict(first.algorithm.state_dict())
    second.episodes.load_state_dict(first.episodes.state_dict())
    for training in (first, second):
        training.metrics = []
        training.restart(5)
        training.run(2, start=2)
    assert equal(first, second) and recorder.recorded == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"target_kl": 0.1}, "target_kl"),
        ({"h_term": {"enabled": True}}, "h_term"),
        ({"epochs": 500}, "2,000 gradient steps"),
    ],
)
def test_what_can_not_be_captured_is_named_and_trains_as_it_is(settings, reason):
    told = {}
    captured = Training(
        graphs=Graphs(TapeRecorder(), told.__setitem__), **{**settings, "epochs": settings.get("epochs", 2)}
    )
    assert reason in told["update"]
    if "epochs" not in settings:
        eager = Training(**settings)
        for training in (eager, captured):
            training.run(3)
        assert equal(eager, captured)
        assert told["rollout"] is None


@pytest.mark.parametrize(
    "settings",
    [
        {"network": {"recurrent": "gru", "recurrent_hidden": 4}},
        {"kind": "dqn", "env": "CartPole-v1"},
        {"kind": "sac"},
    ],
)
def test_rollouts_are_captured_where_updates_are_not(settings):
    recorder, told = TapeRecorder(), {}
    eager, captured = Training(**settings), Training(**settings, graphs=Graphs(recorder, told.__setitem__))
    for training in (eager, captured):
        training.run(5)
        training.restart(8)
        training.run(2, start=5)
    assert equal(eager, captured) and captured.algorithm.updates > 3
    assert told["rollout"] is None and recorder.recorded == 1


def test_noise_that_remembers_is_not_captured():
    told = {}
    Training("ddpg", Graphs(TapeRecorder(), told.__setitem__), noise="ou")
    assert told == {"rollout": "the noise of exploration has a memory on the host"}


def test_a_refused_capture_goes_on_without_one_and_says_why(monkeypatch):
    told = {}
    eager, captured = Training(), Training(graphs=Graphs(TapeRecorder(), told.__setitem__))
    for training in (eager, captured):
        loss = training.algorithm.loss

        def nosy(batch, loss=loss):
            result = loss(batch)
            float(result[0].detach())
            return result

        monkeypatch.setattr(training.algorithm, "loss", nosy)
        training.run(4)
    assert "_local_scalar_dense" in told["update"] and told["rollout"] is None
    assert equal(eager, captured)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@every_kind
def test_cuda_graphs_are_what_eager_cuda_does(kind):
    device, told = torch.device("cuda", 0), {}
    eager = Training(kind, device=device, num_envs=64)
    captured = Training(kind, Graphs(CudaRecorder(device), told.__setitem__), device=device, num_envs=64)
    for training in (eager, captured):
        training.run(6)
        training.restart(3)
        training.run(3, start=6)
        training.algorithm.settle()
    assert told == {"rollout": None, "update": None}
    for a, b in zip(*(training.everything()[0] for training in (eager, captured)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # a library may choose other kernels for a capture


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_refused_cuda_capture_trains_on(monkeypatch):
    device, told = torch.device("cuda", 0), {}
    training = Training(graphs=Graphs(CudaRecorder(device), told.__setitem__), device=device)
    loss = training.algorithm.loss

    def nosy(batch):
        result = loss(batch)
        float(result[0].detach())
        return result

    monkeypatch.setattr(training.algorithm, "loss", nosy)
    training.run(5)
    training.algorithm.settle()
    assert told["update"] and told["rollout"] is None
    assert training.algorithm.updates == 5 * 2 * 4
