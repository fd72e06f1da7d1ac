from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from erlcli.core import statistics
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.statistics import bootstrap_ci, iqm
from erlcli.engine import evaluate
from erlcli.engine.evaluate import Evaluation, Scores, frames_per_second
from erlcli.engine.failures import Interrupted
from erlcli.envs.config import EnvConfig
from erlcli.errors import DivergedError, EnvError

ENVS = '''
import gymnasium
import numpy as np
import torch

BUFFER = np.zeros(2, dtype=np.float32)  # one for all envs, as careless envs have it
LOG = []  # (env, call, seed) in order


class Countdown(gymnasium.Env):
    """Lasts 3 to 9 steps by its seed; observes (steps left, last action); pays the action plus a tenth."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(self, fault=None, reward="float", render_mode=None):
        self.fault, self.kind, self.render_mode = fault, reward, render_mode
        self.left = 0

    def _obs(self, action):
        BUFFER[:] = self.left, action
        return BUFFER

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        LOG.append((id(self), "reset", seed))
        if self.fault == "raise_reset":
            raise RuntimeError("no level loaded")
        self.left = int(self.np_random.integers(3, 10))
        return (self._obs(0), {}) if self.fault != "no_info" else self._obs(0)

    def step(self, action):
        self.left -= 1
        over = self.left == 0 and self.fault != "endless"
        reward = {
            "float": lambda r: r, "float32": np.float32, "array": lambda r: np.array([r]), "scalar": np.array,
            "tensor": torch.tensor, "int": lambda r: 1, "bool": lambda r: np.bool_(True),
            "nan": lambda r: float("nan"), "none": lambda r: None, "vector": lambda r: np.ones(2),
        }[self.kind](float(action) + 0.1)
        obs = self._obs(action)
        if self.fault == "raise_step" and over:
            raise ValueError("the joint snapped")
        obs = {
            "nan": lambda: np.array([np.nan, 0]), "inf": lambda: np.array([np.inf, 0]),
            "huge": lambda: np.array([1e300, 0]), "shape": lambda: np.zeros(3), "none": lambda: None,
            "ragged": lambda: [[1, 2], [3]], "text": lambda: np.array(["a", "b"]), "dict": lambda: {"a": 1},
        }.get(self.fault, lambda: obs)()
        if self.fault == "four":
            return obs, reward, over, {}
        return obs, reward, over if self.fault != "flags" else np.array([True, False]), False, {}

    def render(self):
        return np.full((4, 6, 3), self.left, dtype=np.uint8)

    def close(self):
        LOG.append((id(self), "close", None))
        if self.fault == "close":
            raise RuntimeError("already gone")
'''


class Parity(Policy):
    """Takes action 1 while an odd number of steps is left; remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.action_shape, self.action_dtype, self.extras = (), torch.int64, {}
        self.seen: list[Tensor] = []

    def noise(self, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        raise AssertionError("evaluation explores")

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        raise AssertionError("evaluation explores")

    def act_greedy(self, obs: Tensor) -> Tensor:
        self.seen.append(obs.clone())
        return (obs[:, 0] % 2).to(torch.int64)


@pytest.fixture
def env_id(tmp_path: Path) -> str:
    path = tmp_path / "envs.py"
    path.write_text(ENVS)
    return f"{path}:Countdown"


def config(env_id: str, num_envs: int = 1, limit: int | None = None, **kwargs: Any) -> EnvConfig:
    return EnvConfig(env_id, "gymnasium", num_envs, kwargs, max_episode_steps=limit)


def log_of(evaluation: Evaluation) -> list[tuple[int, str, int | None]]:
    return sys.modules[type(evaluation.envs[0].unwrapped).__module__].LOG


def length_of(seed: int, episode: int) -> int:
    """Steps of an episode, by the env's own rule."""
    from gymnasium.utils import seeding

    return int(seeding.np_random(derive(seed, "eval", episode))[0].integers(3, 10))


def return_of(length: int) -> float:
    """Action 1 at each odd number of steps left."""
    return (length + 1) // 2 + 0.1 * length


def test_every_episode_is_played_once_with_its_own_seed(env_id: str) -> None:
    evaluation = Evaluation(config(env_id, 3), seed=5)
    done: list[tuple[int, float, int]] = []
    scores = evaluation.run(Parity(), range(8), on_episode=lambda *row: done.append(row))
    lengths = [length_of(5, i) for i in range(8)]
    assert len(set(lengths)) > 2
    assert scores.lengths == lengths
    assert scores.returns == pytest.approx([return_of(n) for n in lengths])
    assert sorted(done) == [(i, scores.returns[i], scores.lengths[i]) for i in range(8)]
    # An equal share each: env j plays j, j + 3, j + 6, however long the others take.
    resets = [(env, seed) for env, call, seed in log_of(evaluation) if call == "reset"]
    for j, env in enumerate(evaluation.envs):
        seeds = [seed for who, seed in resets if who == id(env.unwrapped)]
        assert seeds == [derive(5, "eval", i) for i in range(j, 8, 3)]


@pytest.mark.parametrize("num_envs", [2, 5, 20])
def test_scores_do_not_depend_on_the_number_of_envs(env_id: str, num_envs: int) -> None:
    alone = Evaluation(config(env_id), seed=1).run(Parity(), range(12))
    together = Evaluation(config(env_id, num_envs), seed=1).run(Parity(), range(12))
    assert together == alone


def test_parts_of_the_set_add_up_to_the_whole(env_id: str) -> None:
    evaluation = Evaluation(config(env_id, 4), seed=1)
    whole = evaluation.run(Parity(), range(10))
    assert evaluation.run(Parity(), range(3)) + evaluation.run(Parity(), range(3, 10)) == whole
    assert Evaluation(config(env_id, 4), seed=2).run(Parity(), range(10)) != whole
    assert evaluation.run(Parity(), []) == Scores()


def test_observations_are_copied_from_buffers_that_envs_reuse(env_id: str) -> None:
    policy = Parity()
    Evaluation(config(env_id, 3), seed=5).run(policy, range(3))
    assert policy.seen[0][:, 0].tolist() == [length_of(5, i) for i in range(3)]


def test_training_wrappers_and_time_limit_hold(env_id: str) -> None:
    wrapped = EnvConfig(
        env_id,
        "gymnasium",
        2,
        wrappers=(("gymnasium.wrappers:TransformReward", {"func": lambda reward: 10 * reward}),),
        max_episode_steps=2,
    )
    scores = Evaluation(wrapped, seed=5).run(Parity(), range(4))
    assert scores.lengths == [2, 2, 2, 2]
    first = length_of(5, 0)
    assert scores.returns[0] == pytest.approx(10 * (first % 2 + (first - 1) % 2 + 0.2))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("float32", None), ("array", None), ("scalar", None), ("tensor", None), ("int", 1.0), ("bool", 1.0)],
)
def test_rewards_of_any_scalar_type_count(env_id: str, kind: str, expected: float | None) -> None:
    scores = Evaluation(config(env_id, reward=kind), seed=1).run(Parity(), range(2))
    lengths = [length_of(1, i) for i in range(2)]
    assert scores.returns == pytest.approx([return_of(n) if expected is None else expected * n for n in lengths])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"fault": "raise_reset"}, "reset in evaluation episode 0 .* raised RuntimeError: no level loaded"),
        ({"fault": "raise_step"}, "step in evaluation episode 0 .* raised ValueError: the joint snapped"),
        ({"fault": "no_info"}, r"reset .* not \(obs, info\)"),
        ({"fault": "four"}, "step .* returned 4 values"),
        ({"fault": "nan"}, "a NaN or infinite observation"),
        ({"fault": "inf"}, "a NaN or infinite observation"),
        ({"fault": "huge"}, "a NaN or infinite observation"),
        ({"fault": "shape"}, r"an observation of shape \(3,\), not \(2,\)"),
        ({"fault": "none"}, r"an observation of shape \(\), not \(2,\)"),
        ({"fault": "ragged"}, "no observation: "),
        ({"fault": "text"}, "an observation of <U1, where float32 is due"),
        ({"fault": "dict"}, r"an observation of shape \(\)"),
        ({"fault": "flags"}, "flags array.* and False, no booleans"),
        ({"reward": "nan"}, "a reward of nan, no finite number"),
        ({"reward": "none"}, "a reward of None"),
        ({"reward": "vector"}, "a reward of array"),
    ],
)
def test_what_is_no_transition_is_refused(env_id: str, kwargs: dict[str, str], message: str) -> None:
    evaluation = Evaluation(config(env_id, **kwargs), seed=7)
    with pytest.raises(EnvError, match=message) as caught:
        evaluation.run(Parity(), range(2))
    assert caught.value.details["episode"] == 0
    assert caught.value.details["seed"] == derive(7, "eval", 0)
    assert str(derive(7, "eval", 0)) in caught.value.message


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        ("np.full((2, 2), 200, dtype=np.int64)", None),
        ("np.full((2, 2), 300)", "int64 pixels outside"),
        ("np.full((2, 2), 0.5)", "an observation of float64, where uint8 is due"),
    ],
)
def test_pixels_that_would_be_bent_into_bytes_are_refused(tmp_path: Path, pixels: str, message: str | None) -> None:
    path = tmp_path / "pixels.py"
    path.write_text(
        f"""
import gymnasium
import numpy as np


class Pixels(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return np.zeros((2, 2), np.uint8), {{}}

    def step(self, action):
        return {pixels}, 1.0, True, False, {{}}
"""
    )

    class First(Parity):
        def act_greedy(self, obs: Tensor) -> Tensor:
            return torch.zeros(len(obs), dtype=torch.int64)

    evaluation = Evaluation(EnvConfig(f"{path}:Pixels"), seed=1)
    if message is None:
        assert evaluation.run(First(), range(2)) == Scores([1.0, 1.0], [1, 1])
    else:
        with pytest.raises(EnvError, match=message):
            evaluation.run(First(), range(2))


def test_a_failure_carries_the_traceback_of_the_env_and_its_step(env_id: str) -> None:
    with pytest.raises(EnvError) as caught:
        Evaluation(config(env_id, fault="raise_step"), seed=7).run(Parity(), range(1))
    details = caught.value.details
    assert 'raise ValueError("the joint snapped")' in details["traceback"]
    assert "envs.py" in details["traceback"]
    assert details["step"] == length_of(7, 0)


def test_a_policy_that_gives_nan_is_not_blamed_on_the_env(tmp_path: Path) -> None:
    class Nan(Parity):
        def act_greedy(self, obs: Tensor) -> Tensor:
            return torch.full((len(obs), 1), torch.nan)

    evaluation = Evaluation(EnvConfig("Pendulum-v1", "gymnasium"), seed=1)
    with pytest.raises(DivergedError, match="NaN"):
        evaluation.run(Nan(), range(1))
    evaluation.close()


def test_a_stop_ends_it_between_two_steps_and_keeps_what_is_over(env_id: str) -> None:
    done: list[int] = []
    evaluation = Evaluation(config(env_id, 2), seed=1)
    with pytest.raises(Interrupted):
        evaluation.run(
            Parity(), range(50), on_episode=lambda episode, *_: done.append(episode), stop=lambda: len(done) >= 3
        )
    assert 3 <= len(done) <= 4


def test_the_first_env_can_be_watched_at_every_moment(env_id: str) -> None:
    evaluation = Evaluation(config(env_id, 2), seed=5, render_mode="rgb_array")
    moments: list[tuple[int, int, int]] = []
    totals: list[float] = []

    def watch(episode: int, steps: int, total: float) -> None:
        moments.append((episode, steps, int(evaluation.render()[0, 0, 0])))
        totals.append(total)

    scores = evaluation.run(Parity(), range(4), watch=watch)
    lengths = scores.lengths
    # Episodes 0 and 2 are those of env 0: from the reset to the very last step, at which nothing is left.
    assert moments == [(i, step, lengths[i] - step) for i in (0, 2) for step in range(lengths[i] + 1)]
    assert totals[lengths[0]] == scores.returns[0]
    assert evaluation.fps == 12


def test_a_rate_of_pictures_that_is_none_is_the_default():
    assert [frames_per_second(told) for told in (12, np.int64(50), 2.5)] == [12.0, 50.0, 2.5]
    for told in (None, "x", -3, 0, float("nan"), float("inf"), [30]):
        assert frames_per_second(told) == 30.0


def test_envs_are_released_when_one_can_not_be_made(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = evaluate.make_env

    def second_fails(config: EnvConfig) -> Any:
        if made:
            raise EnvError("no memory for another one")
        made.append(make(config))
        return made[-1]

    monkeypatch.setattr(evaluate, "make_env", second_fails)
    with pytest.raises(EnvError, match="no memory"):
        Evaluation(config(env_id, 2), seed=1)
    log = sys.modules[type(made[0].unwrapped).__module__].LOG
    assert (id(made[0].unwrapped), "close", None) in log


def test_an_env_that_fails_to_close_costs_no_results(env_id: str) -> None:
    evaluation = Evaluation(config(env_id, 2, fault="close"), seed=1)
    scores = evaluation.run(Parity(), range(2))
    evaluation.close()
    assert len(scores.returns) == 2
    assert evaluation.envs == []


def test_an_episode_without_an_end_is_not_waited_for(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_STEPS", 50)
    endless = config(env_id, 2, fault="endless")
    with pytest.raises(EnvError, match=r"episode 0 .* has no end after 50 steps") as caught:
        Evaluation(endless, seed=1).run(Parity(), range(2))
    assert caught.value.remedy == "set env.max_episode_steps"
    longer = replace(endless, max_episode_steps=60)  # which says that it is meant
    assert Evaluation(longer, seed=1).run(Parity(), range(2)).lengths == [60, 60]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),  # two cut at each end: mean of 3, 4, 5, 6
        ([100, 1, 3, 2, 4], 3.0),  # one cut at each end
        ([1, 2, 6], 3.0),  # a quarter of three is none
        ([7], 7.0),
    ],
)
def test_iqm_by_hand(values: list[float], expected: float) -> None:
    assert iqm(np.asarray(values, float)) == expected


def test_iqm_works_along_an_axis() -> None:
    values = np.asarray([[1.0, 2, 3, 100], [8, 7, 6, 5]])
    assert iqm(values, axis=1).tolist() == [2.5, 6.5]
    assert iqm(values.T, axis=0).tolist() == [2.5, 6.5]


def test_bootstrap_by_hand() -> None:
    # Two values: the mean of two draws is 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    two = np.asarray([0.0, 1.0])
    assert bootstrap_ci(two, np.mean, seed=0) == (0.0, 1.0)
    assert bootstrap_ci(two, np.mean, seed=0, confidence=0.4) == (0.5, 0.5)
    assert bootstrap_ci(np.full(9, 3.5), iqm, seed=0) == (3.5, 3.5)
    assert bootstrap_ci(np.asarray([2.0]), np.mean, seed=0) == (2.0, 2.0)


def test_bootstrap_of_the_mean_is_the_normal_interval_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).normal(10.0, 2.0, 400)
    wanted = 1.96 * values.std() / 20
    low, high = bootstrap_ci(values, np.mean, seed=1)
    assert low == pytest.approx(values.mean() - wanted, abs=0.03)
    assert high == pytest.approx(values.mean() + wanted, abs=0.03)
    assert bootstrap_ci(values, np.mean, seed=1) == (low, high)
    monkeypatch.setattr(statistics, "CHUNK", 1000)  # two rows of draws at a time, as for very many episodes
    assert bootstrap_ci(values, np.mean, seed=1) == pytest.approx((low, high), abs=0.03)


def test_summary_by_hand() -> None:
    summary = Scores([1.0, 2.0, 3.0, 6.0], [10, 10, 20, 20]).summary(seed=0)
    assert summary["episodes"] == 4
    assert summary["return_mean"] == 3.0
    assert summary["return_std"] == pytest.approx(3.5**0.5)  # squares 4 + 1 + 0 + 9, over 4
    assert summary["return_median"] == 2.5
    assert summary["return_iqm"] == 2.5
    assert (summary["return_min"], summary["return_max"]) == (1.0, 6.0)
    assert summary["length_mean"] == 15.0
    low, high = summary["return_ci"]
    assert 1.0 <= low < 3.0 < high <= 6.0
    assert summary == Scores([1.0, 2.0, 3.0, 6.0], [10, 10, 20, 20]).summary(seed=0)
