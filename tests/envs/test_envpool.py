import gymnasium
import numpy as np
import pytest
import torch

from erlcli.core.actions import ActionMap
from erlcli.envs import envpool as backend
from erlcli.envs import envpool_import
from erlcli.envs.config import ENVPOOL_IDS, EnvConfig
from erlcli.envs.envpool import EnvpoolVecEnv
from erlcli.envs.envpool_exchange import Exchange
from erlcli.envs.gymnasium import GymnasiumVecEnv
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import EnvError, RecipeError

try:
    envpool = envpool_import.load()
except ImportError:
    pytest.skip("envpool is not installed", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def make():
    """Makes pools, and closes them in the end."""
    made = []

    def one(env_id="CartPole-v1", num_envs=4, **config):
        made.append(EnvpoolVecEnv(EnvConfig(env_id, num_envs=num_envs, threads=config.pop("threads", 1), **config)))
        return made[-1]

    yield one
    for pool in made:
        pool.close()


def push(pool):
    """CartPole's cart to the left, which ends an episode within 11 steps."""
    return torch.zeros(pool.spec.num_envs, dtype=torch.int64)


def rows(pool, seed, steps=40):
    """Everything that a pool gives for fixed actions."""
    out = [pool.reset(seed).clone()]
    for t in range(steps):
        step = pool.step(torch.full((pool.spec.num_envs,), t % 2))
        out += [step.obs.clone(), step.reward.clone(), step.valid.clone()]
    return out


@pytest.mark.parametrize("env_id", sorted(ENVPOOL_IDS))
def test_spaces_and_time_limit_are_those_of_gymnasium(env_id):
    assert envpool_import.knows(envpool, env_id)
    spec, own = gymnasium.spec(env_id), envpool.make_spec(env_id)
    env = spec.make(disable_env_checker=True)
    try:
        assert own.gymnasium_observation_space.shape == env.observation_space.shape
        assert own.gymnasium_observation_space.dtype == env.observation_space.dtype
        assert own.config.max_episode_steps == spec.max_episode_steps
        ours, theirs = env.action_space, own.gymnasium_action_space
        assert type(ours) is type(theirs) and ours.shape == theirs.shape
        if isinstance(ours, gymnasium.spaces.Discrete):
            assert (ours.n, ours.start) == (theirs.n, theirs.start)
        else:
            assert np.array_equal(ours.low, theirs.low.astype(ours.dtype))
            assert np.array_equal(ours.high, theirs.high.astype(ours.dtype))
    finally:
        env.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "BipedalWalker-v3"])
def test_both_backends_have_one_spec(env_id, make):
    other = GymnasiumVecEnv(EnvConfig(env_id, num_envs=4))
    assert make(env_id).spec == other.spec
    other.close()


def test_the_row_after_an_end_is_a_reset_and_not_valid(make):
    pool = make()
    pool.reset(3)
    ended = torch.zeros(4, dtype=torch.bool)
    ends = 0
    for _ in range(60):
        step = pool.step(push(pool))
        assert torch.equal(step.valid, ~ended)
        assert not (step.terminated & step.truncated).any()
        assert not ((step.terminated | step.truncated) & ~step.valid).any()
        assert step.final_obs is None
        for i in range(4):
            position, angle = abs(step.obs[i, 0].item()), abs(step.obs[i, 2].item())
            if step.terminated[i]:
                assert position > 2.4 or angle > 0.2094  # the true last observation, beyond the bounds
            elif not step.valid[i]:
                assert step.obs[i].abs().max() <= 0.05  # the first of the next episode
                assert step.reward[i] == 0
            else:
                assert position <= 2.4 and angle <= 0.2095
        ended = step.terminated | step.truncated
        ends += int(ended.sum())
    assert ends >= 16


@pytest.mark.parametrize("cls", [EnvpoolVecEnv, GymnasiumVecEnv])
def test_max_episode_steps_truncates_in_both_backends(cls):
    vec = cls(EnvConfig("CartPole-v1", num_envs=2, max_episode_steps=3, threads=1))
    assert vec.spec.max_episode_steps == 3
    vec.reset(0)
    truncated = [vec.step(push(vec)).truncated.tolist() for _ in range(3)]
    assert truncated == [[False, False], [False, False], [True, True]]
    vec.close()


def test_own_time_limit_truncates(make):
    pool = make("Pendulum-v1", num_envs=1)
    pool.reset(0)
    steps = (pool.step(torch.zeros(1, 1)) for _ in range(201))
    flags = [(step.terminated.item(), step.truncated.item(), step.valid.item()) for step in steps]
    assert flags == [(False, False, True)] * 199 + [(False, True, True), (False, False, False)]


def test_an_end_at_the_time_limit_is_one_end(make):
    pool = make(num_envs=1)
    pool.reset(0)
    length = next(t for t in range(1, 60) if pool.step(push(pool)).terminated.any())
    limited = make(num_envs=1, max_episode_steps=length)
    limited.reset(0)
    step = [limited.step(push(limited)) for _ in range(length)][-1]
    assert (step.terminated | step.truncated).all() and not (step.terminated & step.truncated).any()


def test_seeds_repeat_and_differ(make):
    pool = make()
    first = rows(pool, 5)
    assert all(torch.equal(a, b) for a, b in zip(first, rows(pool, 5), strict=True))
    assert not torch.equal(first[0], pool.reset(6))
    assert len({tuple(row) for row in first[0].tolist()}) == 4  # no two envs start alike
    assert not torch.equal(first[0], pool.reset(5, first_index=4))


def test_threads_change_nothing(make):
    one, many = make(num_envs=8, threads=1), make(num_envs=8, threads=4)
    assert all(torch.equal(a, b) for a, b in zip(rows(one, 1), rows(many, 1), strict=True))


def state_of(env_id, obs):
    """Positions and velocities behind an observation, as `set_state` of gymnasium's MuJoCo envs takes them."""
    hidden = {"HalfCheetah-v5": 1, "Swimmer-v5": 2, "InvertedPendulum-v5": 0}[env_id]  # positions that obs leaves out
    half = (len(obs) + hidden) // 2
    return np.concatenate([np.zeros(hidden), obs[: half - hidden]]), obs[half - hidden :]


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Swimmer-v5", "InvertedPendulum-v5"])
def test_mujoco_dynamics_and_rewards_are_those_of_gymnasium(env_id, make):
    pool, env = make(env_id, num_envs=1), gymnasium.make(env_id).unwrapped
    to_env = ActionMap(pool.spec.action)
    env.reset(seed=0)
    obs = pool.reset(2)[0].double().numpy()
    random = torch.Generator().manual_seed(0)
    for _ in range(60):
        action = torch.rand(1, pool.spec.action.size, generator=random) * 2 - 1
        step = pool.step(action)
        if step.valid[0]:
            env.set_state(*state_of(env_id, obs))
            expected, reward, terminated, _, _ = env.step(to_env(action).numpy()[0])
            assert step.obs[0].numpy() == pytest.approx(expected, abs=2e-3, rel=2e-3)  # obs were rounded to float32
            assert step.reward[0].item() == pytest.approx(reward, abs=2e-3, rel=2e-3)
            assert bool(step.terminated[0]) == terminated
        obs = step.obs[0].double().numpy()
    env.close()


def test_cartpole_dynamics_are_those_of_gymnasium(make):
    pool, env = make(num_envs=1), gymnasium.make("CartPole-v1").unwrapped
    obs = pool.reset(2)[0].numpy().copy()
    env.reset(seed=0)
    for t in range(60):
        step = pool.step(torch.tensor([t % 2]))
        if step.valid[0]:
            env.state, env.steps_beyond_terminated = tuple(obs.astype(float)), None
            expected, reward, terminated, _, _ = env.step(t % 2)
            assert step.obs[0].numpy() == pytest.approx(expected, abs=1e-6)
            assert (step.reward[0].item(), bool(step.terminated[0])) == (reward, terminated)
        obs = step.obs[0].numpy().copy()
    env.close()


class Returns:
    """A pool that returns what it is told."""

    def __init__(self, obs, reward):
        self.row = (obs, reward, np.zeros(4, bool), np.zeros(4, bool))

    def send(self, action):
        pass

    def receive(self):
        return self.row


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("what", ["observation", "reward"])
def test_nan_names_env_seed_and_step(make, what, value):
    pool = make()
    pool.reset(0)
    for _ in range(2):
        pool.step(push(pool))
    obs, reward = np.zeros((4, 4), np.float32), np.zeros(4, np.float32)
    (obs if what == "observation" else reward)[2] = value
    pool._pool = Returns(obs, reward)
    with pytest.raises(EnvError, match=f"env 2 of the pool .*vector step 3.* {what}|a reward of {value}") as caught:
        pool.step(push(pool))
    assert caught.value.details["env_index"] == 2 and caught.value.details["step"] == 3


def test_large_observations_are_no_infinities(make):
    pool = make()
    pool.reset(0)
    pool._pool = Returns(np.full((4, 4), 3e38, np.float32), np.zeros(4, np.float32))  # their sum overflows
    assert torch.isfinite(pool.step(push(pool)).obs).all()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "BipedalWalker-v3", "Hopper-v5"])
def test_an_exchange_is_a_step_of_the_pool(env_id):
    assert envpool_import.knows(envpool, env_id)
    options = {"num_envs": 3, "seed": 5, "max_episode_steps": 20}
    theirs, ours = (envpool.make_gymnasium(env_id, **options) for _ in range(2))
    exchange, random = Exchange(ours, ("elapsed_step",)), np.random.default_rng(0)
    assert np.array_equal(exchange.reset(), theirs.reset()[0])
    ends = np.zeros(2, int)
    for _ in range(100):
        shape = (3, *theirs.action_space.shape)
        action = random.uniform(-1, 1, shape).astype(np.float32) if shape[1:] else random.integers(0, 2, 3)
        obs, reward, terminated, truncated, info = theirs.step(action.astype(theirs.action_space.dtype))
        exchange.send(action)
        got = exchange.receive()
        wanted = (obs, reward, terminated | truncated, truncated, info["elapsed_step"])
        assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))
        ends += terminated.sum(), truncated.sum()
    assert ends.all() or env_id == "BipedalWalker-v3"


def test_an_exchange_knows_what_it_can_not_carry():
    class Crowd:
        _action_keys, _state_keys = ["env_id", "players.env_id", "turn", "action"], ["obs", "reward"]

        def __len__(self):
            return 1

    with pytest.raises(RecipeError, match="of a kind that erl does not know") as caught:
        Exchange(Crowd())
    assert "turn" in caught.value.found


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"env_id": "Nowhere-v0"}, ["envpool has no such environment", 'env.backend = "gymnasium"']),
        ({"env_id": "FrozenLake-v1"}, ["observation space not supported", "Discrete(16)"]),
        ({"env_id": "Catch-v0"}, ["envpool alone has it", "evaluation"]),
        ({"kwargs": {"a": 1}}, ["env.kwargs are gymnasium's"]),
        ({"wrappers": (("a:B", {}),)}, ["env.wrappers are gymnasium's"]),
        ({"frame_stack": 2}, ["env.frame_stack"]),
    ],
)
def test_what_envpool_can_not_do(make, config, parts):
    with pytest.raises(RecipeError) as caught:
        make(**config)
    for part in parts:
        assert part in str(caught.value)


def test_asked_for_but_not_installed(make, monkeypatch):
    monkeypatch.setattr(backend, "envpool", None)
    monkeypatch.setattr(backend, "missing", "No module named 'envpool'")
    with pytest.raises(RecipeError, match="envpool can't be imported") as caught:
        make()
    assert "No module named" in caught.value.found and "erlcli[fast]" in caught.value.remedy


def test_make_vec_env_takes_the_backend_that_is_named():
    for name, cls in (("envpool", EnvpoolVecEnv), ("gymnasium", GymnasiumVecEnv), ("auto", EnvpoolVecEnv)):
        vec = make_vec_env(EnvConfig("CartPole-v1", backend=name, num_envs=2))
        assert isinstance(vec, cls)
        vec.close()
        vec.close()
