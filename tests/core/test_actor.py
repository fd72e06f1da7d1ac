"""Acting compiled does what the policy does."""

import shutil

import pytest
import torch

from erlcli.core.actor import Actor
from erlcli.core.compiled import Compiler
from erlcli.core.gaussian import Gaussian
from erlcli.core.optim import Optimizer
from erlcli.core.policy import ActorPolicy
from erlcli.core.types import Box

OBS, ACTIONS, ENVS = 5, 2, 3

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler here")


def make_policy(seed=0):
    torch.manual_seed(seed)
    box = Box((OBS,), "float32", (-1.0,) * OBS, (1.0,) * OBS)
    policy = ActorPolicy(box, Gaussian(ACTIONS), [8], "tanh", False, obs_clip=5.0)
    policy.normalizer.shift.normal_()
    return policy


def agree(actor, policy, seed):
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(ENVS, OBS, generator=generator)
    noise = policy.noise((ENVS,), generator, obs.device)
    with torch.inference_mode():
        got, (action, beside) = actor(obs, noise), policy.act(obs, noise)
    assert got[0].shape == (ENVS, ACTIONS) and got[1].shape == (ENVS,)
    torch.testing.assert_close(got, (action, beside["log_prob"]))


def test_without_a_compiler_it_is_the_policy():
    policy = make_policy()
    agree(Actor(policy), policy, 0)


def test_a_refusal_is_told(tmp_path):
    policy, told = make_policy(), {}
    agree(Actor(policy, compiler=Compiler(None, told.__setitem__), refusal="no"), policy, 0)
    assert not told  # since nothing is to be compiled
    compiler = Compiler(tmp_path, told.__setitem__)
    agree(Actor(policy, compiler=compiler, refusal="no"), policy, 0)
    assert told == {"acting": "no"}


@needs_compiler
def test_it_is_compiled_once_and_follows_the_policy(tmp_path):
    policy, told = make_policy(), []
    optimizer = Optimizer({"policy": policy})
    actor = Actor(policy, compiler=Compiler(tmp_path, lambda name, reason: told.append((name, reason))))
    for seed in range(3):
        agree(actor, policy, seed)
    assert told == [("acting", None)]
    policy.load_state_dict(make_policy(1).state_dict())  # what a learner or a checkpoint does
    agree(actor, policy, 0)
    optimizer.flat.mul_(0.5)
    agree(actor, policy, 0)

    # The next one finds it, unless no optimiser holds the numbers: they are elsewhere then, which is another library.
    class AnotherOne(Exception):
        """Raised where something would be compiled."""

    def begin(name):
        raise AnotherOne

    compiler = Compiler(tmp_path, begin=begin)
    agree(Actor(policy, compiler=compiler), policy, 0)
    with pytest.raises(AnotherOne):
        agree(Actor(make_policy(2), compiler=compiler), policy, 0)
