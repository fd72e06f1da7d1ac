from pathlib import Path

import numpy as np
import pytest
import torch

from erlcli.core.seeding import derive
from erlcli.envs.config import EnvConfig
from erlcli.envs.gymnasium import GymnasiumVecEnv
from erlcli.envs.returned import copy_obs, scalar
from erlcli.errors import EnvError, ErlError, RecipeError

HANDMADE = Path(__file__).parent / "handmade.py"


@pytest.fixture
def make():
    """Makes vectors of handmade environments, and closes them in the end."""
    made = []

    def one(name, num_envs=2, **kwargs):
        config = {key: kwargs.pop(key) for key in ("frame_stack", "wrappers", "max_episode_steps") if key in kwargs}
        env_id = name if name.endswith(("-v1", "-v3")) else f"{HANDMADE}:{name}"
        made.append(GymnasiumVecEnv(EnvConfig(env_id, num_envs=num_envs, kwargs=kwargs, **config)))
        return made[-1]

    yield one
    for vec in made:
        vec.close()


def idle(vec):
    """A policy's action that does nothing in particular."""
    return torch.zeros(vec.spec.num_envs, dtype=torch.int64)


def test_a_step_that_ends_an_episode_gives_its_last_observation_and_the_first_of_the_next(make):
    vec = make("Counter", length=3)
    first = vec.reset(7).clone()
    assert first[:, 1].tolist() == [0, 0]
    for t in (1, 2):
        step = vec.step(idle(vec))
        assert step.final_obs is None and not step.terminated.any() and step.valid.all()
        assert step.obs[:, 1].tolist() == [t, t]
    step = vec.step(idle(vec))
    assert step.terminated.tolist() == [True, True] and not step.truncated.any()
    assert sorted(step.final_obs) == [0, 1]
    for i in (0, 1):
        assert step.final_obs[i].tolist() == [first[i, 0], 3]  # same episode, third step
    assert step.obs[:, 1].tolist() == [0, 0]
    assert (step.obs[:, 0] != first[:, 0]).all()  # a new episode, not the first once more
    kept = step.final_obs[0].clone()
    vec.step(idle(vec))
    assert torch.equal(step.final_obs[0], kept)  # memory of its own


def test_envs_that_end_at_different_times_are_told_apart(make):
    vec = make("Counter")
    vec.envs[0].length, vec.envs[1].length = 2, 3
    vec.reset(0)
    ends = [sorted((vec.step(idle(vec)).final_obs or {}).keys()) for _ in range(6)]
    assert ends == [[], [0], [1], [0], [], [0, 1]]


def test_time_limit_truncates_and_keeps_the_last_observation(make):
    vec = make("Endless", max_episode_steps=4)
    assert vec.spec.max_episode_steps == 4
    vec.reset(0)
    steps = [vec.step(idle(vec)) for _ in range(3)]
    assert not any(step.truncated.any() for step in steps)
    step = vec.step(idle(vec))
    assert step.truncated.all() and not step.terminated.any()
    assert [step.final_obs[i][1].item() for i in (0, 1)] == [4, 4]


def test_time_limit_of_a_registered_id_can_be_changed(make):
    assert make("CartPole-v1").spec.max_episode_steps == 500
    vec = make("CartPole-v1", max_episode_steps=3)
    assert vec.spec.max_episode_steps == 3
    vec.reset(0)
    truncated = [vec.step(idle(vec)).truncated.tolist() for _ in range(3)]
    assert truncated == [[False, False], [False, False], [True, True]]


def test_a_step_that_terminates_and_truncates_counts_as_terminated(make):
    vec = make("Flags", kind="both", length=1)
    vec.reset(0)
    step = vec.step(idle(vec))
    assert step.terminated.all() and not step.truncated.any()


def test_reused_observation_buffers_are_copied(make):
    vec = make("Reuses", length=2)
    first = vec.reset(3).clone()
    vec.step(idle(vec))
    step = vec.step(idle(vec))
    assert step.final_obs[0].tolist() == [first[0, 0], 2]  # though the env has emptied its buffer since
    assert step.obs[0, 1] == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", 3), ("float64", 0.25), ("array", 1.5), ("array0", 1.5), ("bool", 1), ("bool_", 1)],
)
def test_odd_rewards_become_float32(make, kind, value):
    vec = make("Rewards", kind=kind)
    vec.reset(0)
    reward = vec.step(idle(vec)).reward
    assert reward.dtype == torch.float32 and reward.tolist() == [value, value]


@pytest.mark.parametrize("kind", ["nan", "inf", "huge", "text", "none", "pair"])
def test_rewards_that_are_no_finite_number_are_refused(make, kind):
    vec = make("Rewards", kind=kind)
    vec.reset(0)
    with pytest.raises(EnvError, match=r"step of env 0 .*, step 1.*reward"):
        vec.step(idle(vec))


@pytest.mark.parametrize("kind", ["int", "numpy", "array"])
def test_odd_flags_become_booleans(make, kind):
    vec = make("Flags", kind=kind, length=2)
    vec.reset(0)
    assert not vec.step(idle(vec)).terminated.any()
    assert vec.step(idle(vec)).terminated.all()


@pytest.mark.parametrize("kind", ["none", "text"])
def test_flags_that_are_no_booleans_are_refused(make, kind):
    vec = make("Flags", kind=kind)
    vec.reset(0)
    with pytest.raises(EnvError, match="flags"):
        vec.step(idle(vec))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2.0), (True, 1.0), (np.float32(0.5), 0.5), (np.array([[3]]), 3.0), ("3", None), (None, None), ([1, 2], None),
     ([[1], [1, 2]], None), (1j, None), (torch.tensor(2.0), 2.0)],
)  # fmt: skip
def test_scalar(value, expected):
    assert scalar(value) == expected


def test_seeds_differ_between_envs_and_workers_and_repeat(make):
    vec = make("Counter", num_envs=4)
    a = vec.reset(5)[:, 0].tolist()
    assert len(set(a)) == 4
    assert vec.reset(5)[:, 0].tolist() == a
    assert set(vec.reset(6)[:, 0].tolist()).isdisjoint(a)
    # The second worker of two has the seeds that envs 2 and 3 of one process would have.
    assert make("Counter", num_envs=2).reset(5, first_index=2)[:, 0].tolist() == a[2:]


def test_trajectories_repeat_through_ends_of_episodes(make):
    def rows(vec):
        out = [vec.reset(11).clone()]
        for t in range(25):
            step = vec.step(torch.tensor([t % 2, 1]))
            out += [step.obs.clone(), step.reward.clone()]
        return out

    one, other = rows(make("CartPole-v1")), rows(make("CartPole-v1"))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("way", ["raise", "nan", "inf", "shape", "column", "none", "text", "ragged", "short", "alone"])
@pytest.mark.parametrize(("call", "step", "episode"), [("step", 3, 0), ("reset", 0, 1)])
def test_faults_name_env_seed_step_and_have_the_traceback(make, call, step, episode, way):
    vec = make("Counter", num_envs=3)
    vec.envs[1] = make("Faulty", num_envs=1, call=call, way=way).envs[0]
    vec.reset(9)
    with pytest.raises(EnvError) as caught:
        for _ in range(6):
            vec.step(idle(vec))
    error = caught.value
    assert f"{call} of env 1 (seed {derive(9, 'env', 1)}, episode {episode}, step {step})" in error.message
    assert error.details["env_index"] == 1
    assert error.details["seed"] == derive(9, "env", 1)
    assert (error.details["episode"], error.details["step"]) == (episode, step)
    assert error.exit_code == 3 and "erl envs check" in str(error)
    if way == "raise":
        assert "a fault of the env" in error.message
        assert "handmade.py" in error.details["traceback"] and "ZeroDivisionError" in error.details["traceback"]
    assert ErlError.from_json(error.to_json()).details == error.details  # as it crosses to the supervisor


def test_a_fault_in_the_very_first_reset(make):
    vec = make("Faulty", call="reset", way="nan", at=0)
    with pytest.raises(EnvError, match=r"reset of env 0 .*, episode 0, step 0.* NaN or infinite observation"):
        vec.reset(0)


def test_lists_are_taken_as_observations(make):
    vec = make("Faulty", num_envs=1, way="list")
    vec.reset(0)
    for _ in range(2):
        vec.step(idle(vec))
    assert vec.step(idle(vec)).obs.tolist() == [[0.0, 1.0]]


@pytest.mark.filterwarnings("ignore:.*length of a multi-dimensional MultiDiscrete")
@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        ("dict", (7,), "float32"),  # the keys in order: one-hot of 3, then 2 x 2
        ("tuple", (5,), "float32"),
        ("discrete", (4,), "float32"),
        ("multi", (14,), "float32"),
        ("binary", (6,), "float32"),
        ("float64", (2, 2), "float32"),
        ("int64", (3,), "float32"),
        ("image", (4, 5, 3), "uint8"),
        ("scalar", (), "float32"),
    ],
)
def test_observations_of_every_kind(make, kind, shape, dtype):
    vec = make("Spaces", kind=kind)
    assert (vec.spec.obs.shape, vec.spec.obs.dtype) == (shape, dtype)
    obs = vec.reset(0)
    assert obs.dtype == getattr(torch, dtype) and obs.shape == (2, *shape)
    step = vec.step(idle(vec))
    seen = vec.envs[1].unwrapped.seen[-1]
    if kind == "discrete":
        assert step.obs[1].tolist() == [float(i == seen) for i in range(4)]
    elif kind == "dict":
        assert (
            step.obs[1].tolist() == [float(i == seen["a"]) for i in range(3)] + seen["b"].astype("f4").ravel().tolist()
        )
    elif kind == "tuple":
        assert step.obs[1].tolist() == [*map(float, seen[0]), *(float(i == seen[1] - 5) for i in range(3))]
    elif kind in ("float64", "int64", "image", "scalar"):
        assert np.array_equal(step.obs[1].numpy(), np.asarray(seen).astype(dtype))


@pytest.mark.parametrize("kind", ["sequence", "graph"])
def test_observations_without_a_fixed_size_are_refused(make, kind):
    with pytest.raises(RecipeError, match="observation space not supported"):
        make("Spaces", kind=kind)


def test_pixels_that_are_floats_or_out_of_range_are_refused(make):
    vec = make("Spaces", kind="image")
    vec.reset(0)
    env = vec.envs[0].unwrapped
    env.observe = lambda: np.full((4, 5, 3), 0.5, np.float32)
    with pytest.raises(EnvError, match="float32, where uint8 is due"):
        vec.step(idle(vec))
    env.observe = lambda: np.full((4, 5, 3), 256, np.int64)
    with pytest.raises(EnvError, match=r"pixels outside of 0 \.\.\. 255"):
        vec.step(idle(vec))
    env.observe = lambda: np.full((4, 5, 3), 255, np.int64)
    assert vec.step(idle(vec)).obs[0].unique().tolist() == [255]


def test_frames_are_stacked(make):
    vec = make("Counter", frame_stack=3, length=10)
    assert vec.spec.obs.shape == (3, 2)
    assert vec.reset(0)[0, :, 1].tolist() == [0, 0, 0]
    vec.step(idle(vec))
    assert vec.step(idle(vec)).obs[0, :, 1].tolist() == [0, 1, 2]


def test_stacked_frames_of_a_flattened_space(make):
    spec = make("Spaces", kind="dict", frame_stack=2).spec
    assert (spec.obs.shape, spec.obs.stack, spec.flattened) == ((2, 7), 2, True)


def test_flattening_that_a_recipe_names_is_its_own(make):
    assert make("Spaces", kind="discrete").spec.flattened
    assert not make("Spaces", kind="discrete", wrappers=(("gymnasium.wrappers:FlattenObservation", {}),)).spec.flattened
    assert not make("Spaces", kind="float64").spec.flattened


def test_wrappers_apply_in_order_with_their_arguments(make):
    scale = f"{HANDMADE}:Scale"
    vec = make("Counter", wrappers=((scale, {"factor": 3.0}), ("gymnasium.wrappers:TransformReward", {"func": abs})))
    vec.reset(0)
    assert vec.step(idle(vec)).reward.tolist() == [1.5, 1.5]


def test_close_twice_is_fine_and_closes_all(make):
    vec = make("Counter")
    closed = []
    for env in vec.envs:
        env.close = lambda: closed.append(1)
    vec.close()
    vec.close()
    assert len(closed) == 2


def test_an_env_that_fails_to_close_is_told_once_and_keeps_no_other_open(make, capsys):
    vec, closed = make("Unclosable", num_envs=3), []
    vec.envs[1].close = lambda: closed.append(1)
    vec.close()
    assert closed == [1]
    assert capsys.readouterr().err.count("close() raised AttributeError") == 1


@pytest.mark.parametrize("size", [3, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_and_many_numbers_are_finite_or_not(size, dtype):
    row, obs = np.zeros(size, np.float32), np.full(size, 3e38, dtype)  # whose sum is beyond float32
    assert copy_obs(obs, row) is None
    assert row.tolist() == obs.astype(np.float32).tolist()
    for wrong in (np.nan, np.inf, -np.inf):
        obs[1] = wrong
        assert copy_obs(obs, row).startswith("a NaN or infinite observation")
    obs[1:] = np.resize([np.inf, -np.inf], size - 1)
    assert copy_obs(obs, row) is not None
