"""Environments as tensors: autoreset, time limit and seeds by hand, and no look at a value.

Dimension letters: T time steps, N environments.
"""

import re
import sys

import pytest
import torch
from gymnasium import spaces

from erlcli.core.compiled import Compiler
from erlcli.core.host_reads import HostReads
from erlcli.core.toolchain import cxx
from erlcli.core.types import Discrete
from erlcli.envs.config import EnvConfig
from erlcli.envs.torch_env import TorchEnv
from erlcli.envs.torch_find import SHIPPED
from erlcli.envs.torch_vec import TorchVecEnv
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import EnvError, RecipeError

N = 4
needs_compiler = pytest.mark.skipif(cxx() is None, reason="no C++ compiler here")


class Counter(TorchEnv):
    """Counts from a random start; action 1 counts double, and 20 or more above the start terminates."""

    max_episode_steps = 15

    def __init__(self, num_envs, device, fault=None):
        super().__init__(num_envs, device)
        self.observation_space = spaces.Box(-1e9, 1e9, (2,))
        self.action_space = spaces.Discrete(2, start=5)
        self.fault = fault

    def initial(self):
        start = self.uniform(0.0, 1000.0)
        return start, torch.zeros_like(start)

    def dynamics(self, state, action):
        start, count = state
        if self.fault == "in place":
            count += 1
        if self.fault == "in place, by the action":
            count *= action - 5  # by 0 or 1, of 0
        if self.fault == "action":
            action += 0
        if self.fault == "data":
            count.data += action - 5
        count = count + 1 + (action == 6)
        reward = {
            "nan": 0.0 / (1.0 - 1.0 * (count == 3)),
            "column": count.unsqueeze(1),
            "float64": count.double(),
        }.get(self.fault, count)
        terminated = count.long() if self.fault == "terminated" else count >= 20
        if self.fault == "raise" and bool((count > 3).any()):
            raise ZeroDivisionError("by hand")
        if self.fault == "look":
            terminated = terminated & bool(count.sum() > 0)
        return (start,) if self.fault == "short" else (start, count), reward, terminated

    def observe(self, state):
        return state[0] if self.fault == "obs" else torch.stack(state, 1)


class Constant(Counter):
    """Observes a part of its state that dynamics hands on as it is."""

    def initial(self):
        return (torch.zeros(self.num_envs, 2),)

    def dynamics(self, state, action):
        return state, torch.ones(self.num_envs), torch.zeros(self.num_envs, dtype=torch.bool)

    def observe(self, state):
        return state[0]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "counter_envs", sys.modules[__name__])


def vec(num_envs=N, name="Counter", **settings):
    return make_vec_env(EnvConfig(f"counter_envs:{name}", "torch", num_envs, **settings))


def actions(*doubles):
    """One for each environment; True counts double."""
    return torch.tensor([int(x) for x in doubles])


def test_resets_happen_within_the_step_and_only_where_an_episode_ended():
    env = vec()
    first = env.reset(3).clone()
    assert env.spec.gives_next_obs and env.spec.capturable and env.spec.max_episode_steps == 15
    for t in range(1, 16):
        step = env.step(actions(True, False, True, False))
        counts = torch.tensor([2.0 * t, t, 2.0 * t, t])
        if t > 10:  # envs 0 and 2 have terminated at 20, in step 10
            counts -= torch.tensor([20.0, 0, 20.0, 0])
        assert step.reward.tolist() == counts.tolist() and step.valid.all() and step.final_obs is None
        assert step.terminated.tolist() == [t == 10, False, t == 10, False]
        assert step.truncated.tolist() == [False, t == 15, False, t == 15]
        assert step.next_obs[:, 1].tolist() == counts.tolist()
        ended = step.terminated | step.truncated
        assert torch.equal(step.obs[~ended], step.next_obs[~ended])
        assert (step.obs[ended, 1] == 0).all() and (step.obs[ended, 0] != step.next_obs[ended, 0]).all()
        starts = step.next_obs[:, 0]
        assert torch.equal(starts[[1, 3]], first[[1, 3], 0])
        assert torch.equal(starts[[0, 2]] == first[[0, 2], 0], torch.tensor([t <= 10] * 2))


def test_both_ends_at_once_count_as_terminated():
    env = vec(max_episode_steps=10)
    env.reset(0)
    for _ in range(10):
        step = env.step(actions(True, False, True, False))
    assert step.terminated.tolist() == [True, False, True, False]
    assert step.truncated.tolist() == [False, True, False, True]


def test_equal_seeds_give_equal_episodes_and_others_other_ones():
    def starts(env, seed, index=0):
        env.reset(seed, index)
        return torch.stack([env.step(actions(True, True, True, True)).obs[:, 0].clone() for _ in range(25)])

    env, other = vec(), vec()
    first = starts(env, 1)
    assert torch.equal(first, starts(env, 1)) and torch.equal(first, starts(other, 1))
    assert len(first.unique()) == 3 * N
    assert not torch.isin(first, starts(env, 2)).any() and not torch.isin(first, starts(env, 1, N)).any()


def test_the_state_stays_at_its_place():
    env = vec()
    env.reset(0)
    before = [tensor.data_ptr() for tensor in (*env._state, env._age, env._health)]
    for _ in range(30):
        env.step(actions(True, False, True, True))
    env.reset(1)
    assert [tensor.data_ptr() for tensor in (*env._state, env._age, env._health)] == before


@pytest.mark.parametrize("env_id", [*SHIPPED, "counter_envs:Counter"])
def test_a_step_never_looks_at_a_value(env_id):
    env = make_vec_env(EnvConfig(env_id, "torch", 8))
    env.reset(0)
    choice = isinstance(env.spec.action, Discrete)
    action = torch.zeros(8, dtype=torch.int64) if choice else torch.zeros(8, env.spec.action.size)
    with HostReads() as watch, torch.inference_mode():
        for _ in range(3):
            env.step(action)
    assert watch.found == []


def test_a_look_is_found():
    env = vec(kwargs={"fault": "look"})
    env.reset(0)
    with HostReads() as watch:
        env.step(actions(True, True, True, True))
    assert [read.operation for read in watch.found] == ["_local_scalar_dense"]
    assert __file__ in watch.found[0].where


@pytest.fixture(scope="module")
def compiled_chasing(tmp_path_factory):
    """Point chasing, whose dynamics draw, as machine code and as it is; and what the compiler told."""
    told = []
    compiler = Compiler(tmp_path_factory.mktemp("libraries"), lambda name, reason: told.append((name, reason)))
    config = EnvConfig("torch/PointChasing-v0", "torch", N, max_episode_steps=12)
    env, plain = TorchVecEnv(config, compiler=compiler), TorchVecEnv(config)
    env.reset(0)
    env.step(torch.zeros(N, 2))
    return env, plain, told


@needs_compiler
def test_a_compiled_step_is_the_same_with_the_same_draws(compiled_chasing):
    env, plain, told = compiled_chasing
    assert told[0] == ("env step", None)
    source = torch.Generator().manual_seed(1)
    torch.testing.assert_close(env.reset(5), plain.reset(5))
    for t in range(1, 40):
        action = torch.rand(N, 2, generator=source) * 2 - 1
        ours, theirs = env.step(action), plain.step(action)
        for name in ("obs", "reward", "next_obs"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-4)
        assert torch.equal(ours.terminated, theirs.terminated)
        assert torch.equal(ours.truncated, theirs.truncated) and bool(ours.truncated.all()) == (t % 12 == 0)
    env.verify()


@needs_compiler
def test_a_compiled_step_notes_what_is_not_finite(compiled_chasing):
    env, _, _ = compiled_chasing
    env.reset(6)
    env._state[0][2] = torch.nan
    env.step(torch.zeros(N, 2))
    with pytest.raises(EnvError, match=r"environment 2 of 4 .*NaN or infinite"):
        env.verify()
    env.reset(7)
    env.step(torch.zeros(N, 2))
    env.verify()


def test_code_of_others_is_not_compiled(tmp_path):
    told = []
    compiler = Compiler(tmp_path / "libraries", lambda name, reason: told.append((name, reason)))
    env = TorchVecEnv(EnvConfig("counter_envs:Counter", "torch", N), compiler=compiler)
    env.reset(0)
    env.step(actions(True, True, True, True))
    assert [name for name, _ in told] == ["env step"] and "outside of erl" in told[0][1]
    assert not (tmp_path / "libraries").exists()


def test_draws_that_are_given_come_in_the_place_of_new_ones():
    env = vec().env
    asked = env.asks(lambda: (env.uniform(1.0, 2.0, 3), env.normal()))
    assert [(draw.shape, draw.bounds) for draw in asked] == [((N, 3), (1.0, 2.0)), ((N,), None)]
    env.generator.manual_seed(4)
    numbers = [draw.make(env.generator) for draw in asked]
    env.give(list(zip(asked, numbers, strict=True)))
    assert env.uniform(1.0, 2.0, 3) is numbers[0] and env.normal() is numbers[1]
    env.generator.manual_seed(4)
    assert torch.equal(env.uniform(1.0, 2.0, 3), numbers[0]) and torch.equal(env.normal(), numbers[1])


class Curriculum(Counter):
    """Starts further and further away: all at once, or by a tensor."""

    def __init__(self, num_envs, device, by="bounds"):
        super().__init__(num_envs, device)
        self.by, self.level, self.scale = by, 1.0, torch.ones((), device=device)
        self.capturable = by != "bounds, not captured"

    def initial(self):
        start = self.scale * self.uniform(0.0, 1.0) if self.by == "tensor" else self.uniform(0.0, self.level)
        return start, torch.zeros_like(start)

    def dynamics(self, state, action):
        self.level *= 2.0
        self.scale.mul_(2.0)
        return super().dynamics(state, action)


def test_bounds_that_change_are_refused_where_draws_are_made_before():
    env = vec(name="Curriculum")
    env.reset(0)
    with pytest.raises(EnvError, match=r"initial\(\) asks for uniform\(0, 8\) where .* uniform\(0, 4\)") as caught:
        env.step(actions(True, True, True, True))
    assert "scale the numbers by a tensor" in str(caught.value.remedy) and caught.value.details["step"] == 1
    for by in ("tensor", "bounds, not captured"):
        env = vec(name="Curriculum", kwargs={"by": by})
        env.reset(0)
        starts = [env.step(actions(True, True, True, True)).obs[:, 0].clone() for _ in range(14)]
        assert max(float(start.max()) for start in starts[9:]) > 100.0  # episodes of 10 steps


def test_what_is_not_finite_is_noted_and_told_when_asked():
    env = vec(kwargs={"fault": "nan"})
    env.reset(7)
    for doubles in (True, False, False), (False, True, False):
        env.step(actions(*doubles, False))
    with pytest.raises(EnvError, match=r"environment 0 of 4 .*NaN or infinite") as caught:
        env.verify()
    assert caught.value.details["env_index"] == 0 and caught.value.details["step"] == 2
    env.reset(8)
    env.verify()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("column", r"dynamics\(\).*rewards as a tensor \(4,\) of float32.*tensor \(4, 1\)"),
        ("float64", "of float64"),
        ("terminated", "terminated as a tensor .* of bool"),
        ("in place", "left as it is"),
        ("in place, by the action", "left as it is"),
        ("action", "left as it is"),
        ("data", "left as it is"),
        ("short", "a state of 2 tensors"),
        ("obs", r"observe\(\).*\(4, 2\)"),
    ],
)
def test_a_method_that_returns_something_else_is_named_at_once(fault, words):
    with pytest.raises(EnvError) as caught:
        vec(kwargs={"fault": fault})
    assert re.search(words, str(caught.value), re.DOTALL)


def test_observations_that_are_a_part_of_the_old_state_are_refused():
    with pytest.raises(EnvError, match="memory of their own"):
        vec(name="Constant")


def test_an_exception_keeps_its_traceback():
    env = vec(kwargs={"fault": "raise"})
    env.reset(0)
    env.step(actions(True, True, True, True))
    with pytest.raises(EnvError, match="ZeroDivisionError: by hand") as caught:
        env.step(actions(True, True, True, True))
    assert "in dynamics" in caught.value.details["traceback"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"frame_stack": 2}, "frame_stack"),
        ({"wrappers": (("a:B", {}),)}, "wrappers"),
        ({"action_masks": "info"}, "action_masks"),
        ({"kwargs": {"speed": 1}}, "unexpected keyword argument 'speed'"),
    ],
)
def test_what_it_cannot_do_is_refused(settings, words):
    with pytest.raises(RecipeError, match=words):
        vec(**settings)


class NoInit(Counter):
    """Forgets the base class."""

    def __init__(self, num_envs, device):
        self.observation_space = self.action_space = spaces.Box(-1.0, 1.0, (1,))


class NoSpaces(Counter):
    """Says nothing of its spaces."""

    def __init__(self, num_envs, device):
        TorchEnv.__init__(self, num_envs, device)


class NoDevice(Counter):
    """Takes something else."""

    def __init__(self, num_envs):
        super().__init__(num_envs, torch.device("cpu"))


class Inside(Counter):
    """Raises a TypeError that speaks of arguments, and has nothing to do with its own."""

    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        dict(**{"colour": 1}, **{"colour": 2})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoInit", r"NoInit has no generator.*super\(\).__init__\(num_envs, device\)"),
        ("NoSpaces", "has no observation_space.*self.observation_space"),
        ("NoDevice", r"\(num_envs, device, \*\*kwargs\).*one that takes \(num_envs\)"),
        ("Inside", "failed while it was made: TypeError: .* keyword argument 'colour'"),
    ],
)
def test_classes_that_are_wrong_are_told_what_is(name, words):
    with pytest.raises(EnvError) as caught:
        vec(name=name)
    assert re.search(words, str(caught.value), re.DOTALL)
    if name == "Inside":
        assert "in __init__" in caught.value.details["traceback"]


class Kinds(Counter):
    """Of other spaces."""

    def __init__(self, num_envs, device, obs=None, action=None):
        super().__init__(num_envs, device)
        self.observation_space, self.action_space = obs or self.observation_space, action or self.action_space


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"obs": spaces.Discrete(3)}, r"Box, float32 or uint8.*observe\(\)"),
        ({"obs": spaces.Dict({"a": spaces.Box(-1.0, 1.0, (1,))})}, r"Box, float32 or uint8.*observe\(\)"),
        ({"action": spaces.Box(0, 5, (2,), "int32")}, r"action space not supported.*dynamics\(\)"),
    ],
)
def test_spaces_that_tensors_do_not_have_are_refused_without_a_word_of_wrappers(kwargs, words):
    with pytest.raises(RecipeError) as caught:
        vec(name="Kinds", kwargs=kwargs)
    assert re.search(words, str(caught.value), re.DOTALL) and "env.wrappers" not in str(caught.value)


def test_other_environments_are_refused():
    for env_id in ("Acrobot-v1", f"{__name__}:EnvConfig"):
        with pytest.raises(RecipeError, match="torch can't step"):
            TorchVecEnv(EnvConfig(env_id.replace(__name__, "counter_envs"), "torch", 1))


class Table(Counter):
    """Looks something up by its state, which has to be one that it gave."""

    def initial(self):
        return torch.zeros(self.num_envs, dtype=torch.int64), torch.zeros(self.num_envs)

    def dynamics(self, state, action):
        place, count = state
        reward = torch.arange(3.0)[place]
        return ((place + 1) % 3, count), reward, count > 0


def test_states_are_always_some_that_the_env_gave():
    for _ in range(20):
        torch.full((N,), 2**40)  # what new memory may hold
        env = vec(name="Table")
    env.reset(0)
    assert [float(env.step(actions(*[True] * N)).reward[0]) for _ in range(3)] == [0.0, 1.0, 2.0]


class Scalar(Counter):
    """Observations of one number without an axis."""

    def __init__(self, num_envs, device):
        super().__init__(num_envs, device)
        self.observation_space = spaces.Box(-1e9, 1e9, ())

    def observe(self, state):
        return state[1] + 0.0


def test_observations_may_be_single_numbers():
    env = vec(name="Scalar")
    assert env.reset(0).shape == (N,)
    assert env.step(actions(True, False, False, True)).obs.tolist() == [2, 1, 1, 2]
    env.verify()


def test_it_lives_where_it_is_put():
    with pytest.raises(EnvError, match=r"initial\(\)|made"):
        vec(device="meta")  # which has no random numbers: the device does reach the class
