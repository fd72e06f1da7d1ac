"""The collector against an environment that keeps its own diary.

Dimension letters: T time steps, N environments.
"""

import pytest
import torch

from erlcli.core.distributions import for_space
from erlcli.core.policy import ActorPolicy
from erlcli.core.types import Box, Discrete, EnvSpec, Step
from erlcli.engine.buffers import Buffers, rollout_layout
from erlcli.engine.collector import Collector
from erlcli.errors import EnvError

T, N = 6, 3
OBS = Box((2,), "float32", (-1e9,) * 2, (1e9,) * 2)


class Diary:
    """A `VecEnv` that counts, reuses its tensors as backends do, and writes down copies of what it gave.

    Env n ends its episode every n + 2 steps, in turn terminated and truncated.
    """

    def __init__(self, num_envs=N, next_step_reset=False, gives_next_obs=False):
        self.spec = EnvSpec(OBS, Discrete(4), num_envs, gives_next_obs=gives_next_obs)
        self.next_step_reset = next_step_reset
        self.obs = torch.zeros(num_envs, 2)
        self.last = torch.zeros(num_envs, 2)
        self.resets = []

    def reset(self, seed, first_index=0):
        self.resets.append((seed, first_index))
        self.calls = 0
        self.age = torch.zeros(self.spec.num_envs, dtype=torch.int64)
        self.ended = torch.zeros(self.spec.num_envs, dtype=torch.bool)
        self.obs[:, 0] = torch.arange(self.spec.num_envs) + first_index
        self.obs[:, 1] = 0
        self.steps = []
        self.seen = [self.obs.clone()]
        return self.obs

    def step(self, action):
        self.calls += 1
        valid = ~self.ended if self.next_step_reset else torch.ones_like(self.ended)
        self.age += 1
        limits = torch.arange(self.spec.num_envs) + 2
        over = (self.age == limits) & valid
        terminated, truncated = over & (self.calls % 2 == 0), over & (self.calls % 2 == 1)
        self.obs[:, 1] += 1.0
        final, following = None, self.obs.clone() if self.spec.gives_next_obs else None
        if self.next_step_reset:
            self.age[~valid] = 0
            self.ended = over
        elif over.any():
            self.last.copy_(self.obs)
            final = {n: self.last[n] for n in over.nonzero().flatten().tolist()}
            self.obs[over, 1] += 1000.0
            self.age[over] = 0
        given = None if self.spec.gives_next_obs else final
        reward = action.float() + self.calls / 100
        step = Step(self.obs, reward, terminated, truncated, valid, given, next_obs=following)
        kept = {n: last.clone() for n, last in (final or {}).items()}
        self.steps.append((action.clone(), step.reward.clone(), terminated.clone(), truncated.clone(), valid, kept))
        self.seen.append(self.obs.clone())
        return step

    def verify(self):
        self.verified = self.calls

    def close(self):
        pass


def make(env, first_index=0, on_step=lambda phase: None):
    torch.manual_seed(1)
    policy = ActorPolicy(OBS, for_space(env.spec.action), (8,), "tanh", False, None)
    with torch.no_grad():
        policy.network[-1].weight.mul_(50)
    return Collector(env, policy, T, first_index, on_step)


def buffers_for(collector, num_envs=None):
    spec = collector.env.spec
    layout = rollout_layout(spec, collector.policy, T, num_envs or spec.num_envs)
    return {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in layout.items()}


@pytest.mark.parametrize("next_step_reset", [False, True])
def test_everything_that_happened_is_written_down(next_step_reset):
    env = Diary(next_step_reset=next_step_reset)
    collector = make(env)
    collector.restart(5)
    buffers = Buffers(buffers_for(collector))
    for k in range(4):
        begin = k * T
        collector.collect(buffers)
        rollout = buffers.rollout(version=k)
        assert rollout.version == k
        assert torch.equal(rollout.obs, torch.stack(env.seen[begin : begin + T + 1]))
        rows = env.steps[begin : begin + T]
        for i, name in enumerate(("action", "reward", "terminated", "truncated", "valid")):
            assert torch.equal(getattr(rollout, name), torch.stack([row[i] for row in rows])), name
        found = {(t, n): obs.tolist() for (t, n), obs in zip(
            rollout.final_obs.index.tolist(), rollout.final_obs.obs, strict=True)}  # fmt: skip
        assert found == {(t, n): last.tolist() for t, row in enumerate(rows) for n, last in row[5].items()}
        if next_step_reset:
            assert not found and not rollout.valid.all()
        else:
            assert len(found) > T // 2


def test_a_rollout_is_looked_through_before_it_is_given():
    env = Diary()
    collector = make(env)
    collector.restart(5)
    buffers = Buffers(buffers_for(collector))
    collector.collect(buffers)
    assert env.verified == T

    def refuse():
        raise EnvError("not finite")

    env.verify = refuse
    with pytest.raises(EnvError, match="not finite"):
        collector.collect(buffers)


def test_all_next_observations_are_written_down_where_environments_give_them():
    env, by_index = Diary(gives_next_obs=True), Diary()
    collector, other = make(env), make(by_index)
    buffers, other_buffers = Buffers(buffers_for(collector)), Buffers(buffers_for(other))
    assert buffers.final_obs is None and other_buffers.next_obs is None
    collector.restart(5)
    other.restart(5)
    for k in range(3):
        collector.collect(buffers)
        other.collect(other_buffers)
        rollout, expected = buffers.rollout(k), other_buffers.rollout(k)
        ended = rollout.terminated | rollout.truncated
        assert torch.equal(rollout.next_obs[~ended], rollout.obs[1:][~ended]) and not len(rollout.final_obs.index)
        last = rollout.finals()
        found = {tuple(i): o.tolist() for i, o in zip(last.index.tolist(), last.obs, strict=True)}
        finals = expected.final_obs
        assert found == {tuple(i): o.tolist() for i, o in zip(finals.index.tolist(), finals.obs, strict=True)}
        assert len(found) > T // 2
        part = buffers.columns(1, 3).rollout(k)
        assert torch.equal(part.next_obs, rollout.next_obs[:, 1:3])


def test_final_observations_of_an_earlier_rollout_do_not_come_back():
    env = Diary()
    collector = make(env)
    collector.restart(5)
    buffers = Buffers(buffers_for(collector))
    collector.collect(buffers)
    assert len(buffers.rollout(0).final_obs.index) > 0
    env.age.fill_(-1000)  # no episode ends from here on
    collector.collect(buffers)
    rollout = buffers.rollout(1)
    assert rollout.final_obs.index.shape == (0, 2) and rollout.final_obs.index.dtype == torch.int64
    assert rollout.final_obs.obs.shape == (0, 2)


def test_log_probs_are_those_of_the_actions_taken():
    collector = make(Diary())
    collector.restart(5)
    buffers = Buffers(buffers_for(collector))
    collector.collect(buffers)
    rollout, policy = buffers.rollout(0), collector.policy
    again = policy.distribution.log_prob(policy.params(policy.features(rollout.obs[:-1])), rollout.action)
    torch.testing.assert_close(rollout.extras["log_prob"], again)
    assert len(rollout.action.unique()) > 1


def test_a_restart_repeats_envs_and_exploration():
    def play(seed):
        env = Diary()
        collector = make(env)
        collector.restart(99)
        buffers = Buffers(buffers_for(collector))
        collector.collect(buffers)
        collector.restart(seed)
        collector.collect(buffers)
        return buffers.rollout(0).action.clone(), env.resets

    (first, resets), (second, _), (other, _) = play(7), play(7), play(8)
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert resets == [(99, 0), (7, 0)]


def test_workers_explore_differently_with_one_seed():
    """Even where they see the same: otherwise eight workers would collect the same rollout eight times."""
    actions = []
    for first_index in (0, N):
        env = Diary()
        collector = make(env, first_index)
        collector.restart(7)
        assert env.resets == [(7, first_index)]
        env.obs[:, 0], collector._obs[:, 0] = 0.0, 0.0
        buffers = Buffers(buffers_for(collector))
        collector.collect(buffers)
        actions.append(buffers.action.clone())
    assert not torch.equal(*actions)


def test_columns_are_views_that_together_make_the_rollout():
    """Two workers write into their columns of one block, as if one collector had written all."""
    envs = [Diary(), Diary()]
    collectors = [make(env, first) for env, first in zip(envs, (0, N), strict=True)]
    tensors = buffers_for(collectors[0], num_envs=2 * N)
    for i, collector in enumerate(collectors):
        collector.restart(3)
        collector.collect(Buffers(tensors).columns(i * N, (i + 1) * N))
    whole = Buffers(tensors).rollout(0)
    for i, collector in enumerate(collectors):
        alone = Buffers(buffers_for(collector))
        collector.restart(3)
        collector.collect(alone)
        part, columns = alone.rollout(0), slice(i * N, (i + 1) * N)
        for name in ("obs", "action", "reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(whole, name)[:, columns], getattr(part, name)), name
        assert torch.equal(whole.extras["log_prob"][:, columns], part.extras["log_prob"])
        mine = (whole.final_obs.index[:, 1] // N) == i
        assert torch.equal(whole.final_obs.index[mine] - torch.tensor([0, i * N]), part.final_obs.index)
        assert torch.equal(whole.final_obs.obs[mine], part.final_obs.obs)


def test_collecting_needs_a_restart_first():
    collector = make(Diary())
    with pytest.raises(RuntimeError, match="restart"):
        collector.collect(Buffers(buffers_for(collector)))


def test_phases_are_announced_and_may_end_the_rollout():
    phases = []

    class Enough(Exception):
        pass

    def on_step(phase):
        phases.append(phase)
        if len(phases) == 4:
            raise Enough

    collector = make(Diary(), on_step=on_step)
    collector.restart(0)
    with pytest.raises(Enough):
        collector.collect(Buffers(buffers_for(collector)))
    assert phases == ["env reset", "env step", "env step", "env step"]


def test_the_failure_of_an_env_is_passed_on():
    env = Diary()
    collector = make(env)
    collector.restart(0)

    def broken(action):
        raise EnvError("it broke")

    env.step = broken
    with pytest.raises(EnvError, match="it broke"):
        collector.collect(Buffers(buffers_for(collector)))


def test_collecting_changes_no_policy_and_keeps_no_graph():
    collector = make(Diary())
    before = {name: tensor.clone() for name, tensor in collector.policy.state_dict().items()}
    collector.restart(0)
    buffers = Buffers(buffers_for(collector))
    collector.collect(buffers)
    assert all(torch.equal(before[name], tensor) for name, tensor in collector.policy.state_dict().items())
    assert not buffers.rollout(0).extras["log_prob"].requires_grad
    # The learner goes on with these tensors under autograd, which tensors made for inference would refuse.
    collector.policy.distribution.log_prob(collector.policy.params(buffers.obs[:-1]), buffers.action).sum().backward()


def test_timing_is_of_the_last_rollout():
    collector = make(Diary())
    collector.restart(0)
    collector.collect(Buffers(buffers_for(collector)))
    assert collector.timing.env > 0 and collector.timing.act > 0


def test_the_layout_has_room_for_an_end_at_every_step():
    env = Diary()
    layout = rollout_layout(env.spec, make(env).policy, T, N)
    assert layout["obs"] == ((T + 1, N, 2), torch.float32)
    assert layout["action"] == ((T, N), torch.int64)
    assert layout["final_obs"] == ((N, T, 2), torch.float32)
    assert layout["extras/log_prob"] == ((T, N), torch.float32)
