"""Evaluation of all episodes at once, against the same episodes one by one.

Dimension letters: N copies.
"""

import sys

import pytest
import torch
from gymnasium import spaces

from erlcli.core.policy import Policy
from erlcli.engine.evaluate import Evaluation
from erlcli.engine.evaluate_torch import TorchEvaluation, make_evaluation
from erlcli.engine.failures import Interrupted
from erlcli.envs.config import EnvConfig
from erlcli.envs.torch_env import TorchEnv
from erlcli.errors import DivergedError, EnvError


class Walk(TorchEnv):
    """Goes right by the action, from a random place in [0, 5), until 10: whole steps where the action is 1."""

    max_episode_steps = 30

    def __init__(self, num_envs, device, fault=None):
        super().__init__(num_envs, device)
        self.observation_space = spaces.Box(-1e9, 1e9, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.fault = fault

    def initial(self):
        return (self.uniform(0.0, 5.0, 1),)

    def dynamics(self, state, action):
        if self.fault == "raise" and state[0].max() > 8:
            raise ZeroDivisionError("by hand")
        x = state[0] + action
        reward = (x[:, 0] / 0.0 if self.fault == "inf" else x[:, 0]) + 0.0
        return (x,), reward, x[:, 0] >= 10

    def observe(self, state):
        return state[0] + 0.0


class Right(Policy):
    """Steps of 0.5 while the place is below 3, else of 1; below `left` it goes the other way, and so for ever."""

    action_shape, action_dtype, extras = (1,), torch.float32, {}

    def __init__(self, left=-99.0, state_size=0):
        super().__init__()
        self.left, self.state_size, self.sizes = left, state_size, []

    def noise(self, shape, generator, device):
        raise NotImplementedError

    def act(self, obs, noise):
        raise NotImplementedError

    def act_greedy(self, obs):
        self.sizes.append(len(obs))
        step = torch.where(obs < 3.0, 0.5, 1.0)
        return torch.where(obs < self.left, -step, step)

    def step_greedy(self, obs, mask, state):
        assert mask is None
        return torch.where(state[:, :1] < 3, 0.5, 1.0), state + 1


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, "walk_env", sys.modules[__name__])


def config(num_envs=1, **settings):
    return EnvConfig("walk_env:Walk", "torch", num_envs, **settings)


@pytest.mark.parametrize("policy", [Right(), Right(left=2.0), Right(state_size=1)])
def test_scores_are_those_of_the_episodes_one_by_one(policy):
    together = make_evaluation(config(), seed=1)
    assert isinstance(together, TorchEvaluation)
    told = []
    scores = together.run(policy, range(40), on_episode=lambda *row: told.append(row))
    alone = Evaluation(config(), seed=1).run(policy, range(40))
    assert scores.lengths == alone.lengths and scores.returns == pytest.approx(alone.returns, rel=1e-6)
    assert sorted(told) == [(i, scores.returns[i], scores.lengths[i]) for i in range(40)]
    assert [row[2] for row in told] == sorted(scores.lengths)  # as they end
    if policy.left == 2.0:
        assert max(scores.lengths) == 30 > min(scores.lengths)


def test_every_episode_is_played_once_whatever_comes_with_it():
    whole = TorchEvaluation(config(), seed=2).run(Right(), range(10))
    again = TorchEvaluation(config(num_envs=3), seed=2)
    assert again.run(Right(), range(4)) + again.run(Right(), range(4, 10)) == whole
    assert again.run(Right(), [7]).returns == whole.returns[7:8]
    again.at_once = 4
    policy, counts = Right(), []
    assert again.run(policy, range(10), on_step=counts.append) == whole
    assert set(policy.sizes) == {4, 2} and counts == sorted(counts) and counts[-1] == 10
    assert TorchEvaluation(config(), seed=3).run(Right(), range(10)) != whole


def test_a_limit_of_the_recipe_counts():
    scores = TorchEvaluation(config(max_episode_steps=2), seed=1).run(Right(), range(5))
    assert scores.lengths == [2] * 5


def test_an_episode_without_an_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(Walk, "max_episode_steps", None)
    monkeypatch.setattr("erlcli.engine.evaluate_torch.MAX_STEPS", 50)
    with pytest.raises(EnvError, match=r"episode \d+ .* has no end after 50 steps"):
        TorchEvaluation(config(), seed=1).run(Right(left=2.0), range(10))
    longer = TorchEvaluation(config(max_episode_steps=60), seed=1).run(Right(left=2.0), range(10))
    assert max(longer.lengths) == 60


def test_faults_are_named():
    with pytest.raises(EnvError, match=r"step 1 returned an observation or reward that is NaN or infinite in .* 0"):
        TorchEvaluation(config(kwargs={"fault": "inf"}), seed=1).run(Right(), range(3))
    with pytest.raises(EnvError, match="ZeroDivisionError: by hand") as caught:
        TorchEvaluation(config(kwargs={"fault": "raise"}), seed=1).run(Right(), range(3))
    assert "in dynamics" in caught.value.details["traceback"]
    policy = Right()
    policy.act_greedy = lambda obs: obs / 0.0 - obs / 0.0
    with pytest.raises(DivergedError, match="NaN or infinite"):
        TorchEvaluation(config(), seed=1).run(policy, range(3))


def test_what_happens_after_an_end_counts_for_nothing():
    policy = Right()
    policy.act_greedy = lambda obs: torch.where(obs >= 10, torch.nan, 1.0)
    scores = TorchEvaluation(config(), seed=1).run(policy, range(20))
    assert max(scores.returns) < 200 and len(set(scores.lengths)) > 1


def test_it_can_be_stopped():
    with pytest.raises(Interrupted):
        TorchEvaluation(config(), seed=1).run(Right(), range(3), stop=lambda: True)


def test_other_backends_are_evaluated_in_gymnasium():
    evaluation = make_evaluation(EnvConfig("CartPole-v1", "gymnasium"), seed=1)
    assert type(evaluation) is Evaluation and evaluation.render_modes == ["human", "rgb_array"]
    evaluation.close()
    assert TorchEvaluation(config(), 1).render_modes == []
    assert TorchEvaluation(EnvConfig("torch/CartPole-v1"), 1).render_modes == ["rgb_array"]
