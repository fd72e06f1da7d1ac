"""Ensembles by hand-computed numbers."""

import itertools

import numpy as np
import pytest
import torch

from erlcli.core.policy import Policy
from erlcli.core.policy_ensemble import ensemble_of
from erlcli.core.types import Box, Discrete, MultiDiscrete

OBS = torch.zeros(1, 3)


class Fixed(Policy):
    """Says the same whatever it sees: an action, or scores of choices."""

    def __init__(self, action=None, logits=None, values=None):
        super().__init__()
        self.action, self.logits, self.values = action, logits, values
        self.scores_are_values = values is not None
        self.action_shape, self.action_dtype = (), torch.float32 if action is not None else torch.int64

    def noise(self, shape, generator, device):
        return torch.zeros(*shape, 0)

    def act(self, obs, noise):
        return self.act_greedy(obs), {}

    def act_greedy(self, obs):
        if self.action is not None:
            return torch.as_tensor(self.action).expand(len(obs), *np.shape(self.action))
        return self.choice_scores(obs).argmax(-1)

    def choice_scores(self, obs):
        scores = self.logits if self.logits is not None else self.values
        return None if scores is None else torch.tensor(scores).expand(len(obs), *np.shape(scores))


class Silent(Fixed):
    """A policy of an algorithm that shows no scores."""

    def choice_scores(self, obs):
        return None


def choice(members, action, rule, same_unit=False):
    return ensemble_of(members, action, rule, same_unit).act_greedy(OBS).tolist()


def test_continuous_actions_are_averaged_as_the_env_would_hold_them():
    space = Box((2,), "float32", (-2.0, float("-inf")), (5.0, 0.25))
    members = [Fixed(action=[0.5, -1.0]), Fixed(action=[9.0, 3.0]), Fixed(action=[-0.25, 0.0])]
    found = ensemble_of(members, space, "mean", False).act_greedy(OBS)
    # held: [0.5, -1], [1, 0.25], [-0.25, 0]; the first dimension is in units of its bounds
    assert torch.allclose(found, torch.tensor([[1.25 / 3, -0.75 / 3]]))


def test_the_mean_is_of_probabilities_not_of_logits():
    """One member is very sure of 0, two lean to 1: logits would say 0, probabilities say 1."""
    members = [Fixed(logits=[20.0, 0.0]), Fixed(logits=[0.0, 2.0]), Fixed(logits=[0.0, 2.0])]
    p = 1 / (1 + np.exp(-2.0))
    ensemble = ensemble_of(members, Discrete(2), "mean", False)
    assert torch.allclose(ensemble.scores(OBS), torch.tensor([[(1 + 2 * (1 - p)) / 3, 2 * p / 3]], dtype=torch.float32))
    assert choice(members, Discrete(2), "mean") == [1]


def test_q_values_of_one_unit_are_averaged_without_a_softmax():
    members = [Fixed(values=[10.0, 0.0, 0.0]), Fixed(values=[0.0, 3.0, 0.0]), Fixed(values=[0.0, 3.0, 0.0])]
    assert choice(members, Discrete(3), "mean", same_unit=True) == [0]  # means 10/3, 2, 0
    assert choice(members, Discrete(3), "mean", same_unit=False) == [1]  # each counts as its choice
    mixed = [*members[:1], Fixed(logits=[0.0, 1.0, 0.0]), Fixed(logits=[0.0, 1.0, 0.0])]
    p = np.exp(1) / (np.exp(1) + 2)
    assert (1 + (1 - p)) / 3 > 2 * p / 3  # the value-based member's choice weighs 1
    assert choice(mixed, Discrete(3), "mean", same_unit=True) == [0]


def test_the_majority_wins_however_sure_the_others_are():
    members = [Fixed(logits=[9.0, 0.0, 0.0]), Fixed(logits=[0.0, 0.1, 0.0]), Fixed(logits=[0.0, 0.1, 0.0])]
    assert choice(members, Discrete(3), "vote") == [1]
    assert choice(members, Discrete(3), "mean") == [0]


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_ties_go_to_the_larger_mean(order):
    members = [Fixed(logits=[1.0, 0.0, 0.0]), Fixed(logits=[0.0, 0.0, 3.0])]
    assert choice([members[i] for i in order], Discrete(3), "vote") == [2]
    values = [Fixed(values=[-500.0, -900.0]), Fixed(values=[-700.0, -600.0])]  # means -600, -750
    assert choice([values[i] for i in order], Discrete(2), "vote", same_unit=True) == [0]


def test_a_tie_never_outweighs_a_vote():
    """However many members, and however large the values."""
    losers = [Fixed(values=[1e6, 0.0]) for _ in range(49)]
    winners = [Fixed(values=[0.0, 1e-3]) for _ in range(50)]
    assert choice([*losers, *winners], Discrete(2), "vote", same_unit=True) == [1]


def test_each_dimension_of_several_choices_is_decided_by_itself():
    space = MultiDiscrete((2, 3), (2,))
    one = [[5.0, 0.0, -1e9], [0.0, 5.0, 0.0]]
    two = [[0.0, 1.0, -1e9], [0.0, 5.0, 0.0]]
    members = [Fixed(logits=one), Fixed(logits=two), Fixed(logits=two)]
    assert choice(members, space, "vote") == [[1, 1]]
    assert choice(members, space, "mean") == [[0, 1]]


def test_a_policy_without_scores_counts_as_its_choice():
    members = [Silent(logits=[0.0, 9.0]), Fixed(logits=[0.5, 0.0])]
    members[0].act_greedy = lambda obs: torch.ones(len(obs), dtype=torch.int64)
    assert choice(members, Discrete(2), "mean") == [1]


def test_observations_at_which_a_vote_hangs_on_rounding_are_told():
    sure, torn = Fixed(logits=[1.0, 0.0]), Fixed(logits=[1.0, 1.0 + 1e-6])
    for rule, members, clear in (
        ("vote", [sure, sure], True),
        ("vote", [sure, torn], False),
        ("mean", [sure, torn], True),  # probabilities move by rounding alone
        ("mean", [sure, Fixed(values=[0.0, 1e-6])], False),  # counts by its choice
    ):
        assert ensemble_of(members, Discrete(2), rule, False).is_clear(OBS).tolist() == [clear]


def test_one_member_is_the_policy_itself():
    logits = [0.0, 3.0, 1.0]
    for rule in ("mean", "vote"):
        assert choice([Fixed(logits=logits)], Discrete(3), rule) == [1]
    assert choice([Fixed(action=[0.5])], Box((1,), "float32", (-1.0,), (1.0,)), "mean") == [[0.5]]
