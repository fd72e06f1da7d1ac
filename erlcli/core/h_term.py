"""The H-term: an add-on to the loss of an actor that keeps the actions of good episodes likely.

Liu et al., "Stationary Deep Reinforcement Learning with Quantum K-spin Hamiltonian Equation" (submitted to ICLR 2023,
openreview LVum7knUA7g); before it Liu and Fang, "Quantum Tensor Networks for Variational Reinforcement Learning"
(NeurIPS 2020 workshop). Upstream is what ElegantRL made of it in 2022.

Where it comes from. Unrolled K times, Bellman's equation has no value function in it: the objective is a sum over
paths, whose term for path l and step k is the path's probability under the policy times g^k R(s_k, a_k). Read as the
energy of a K-spin system it gets a minus sign, and a policy of lowest energy is looked for. The gradient of a product
of probabilities is the product times the gradient of its logarithm; with paths drawn from a store of trajectories
instead of a sum over all, what is left for a step gradient is that of

    H = -sum_{l=1..L} sum_{k=1..K} g_H^k R(s_{t+k}, a_{t+k}) log pi(a_{t+k} | s_{t+k})

and the actor minimises its own loss + lambda_H H / L. Nothing corrects for the paths being those of older policies. So
it is no policy gradient: it is imitation of the actor's own good past, weighted by rewards, beside what the algorithm
itself learns.

What it does. The paper claims that the variance across runs falls by 65 to 86 %. `benchmarks/h_term.md` has our own PPO
on Hopper with and without it, 8 seeds of a million steps: means and spreads are equal as far as 8 seeds can tell. What
differs is that the policy keeps exploring for much longer.

Choices, and where they depart from upstream:

* The store keeps whole episodes and drops the `drop_rate` of lowest returns, as upstream does at each update; here it
  is each time that `min_steps` steps have come in, or an algorithm with short rollouts would be left with a handful of
  episodes for ever. Upstream's store grows without end, and windows run from one episode into the next.
* A window is cut short by the end of its episode; what is missing counts as the lowest reward. So the last steps of an
  episode and episodes shorter than K are learnt from too.
* The paper takes the L windows of the highest K-step return; upstream draws them at random. The best of the whole store
  would be the same L at every step, so `pool` L are drawn and the best L of them are taken. The ranking and the term
  have the same discount, g_H.
* Rewards are scaled to [0, 1] between the lowest and the highest in the store, as upstream has it: actions are never
  pushed away. Where all rewards are equal they count as 1, where upstream divides by 0.
* Upstream clamps the window's sum of log-probabilities to [-16, 2]. Here each step's is held within `LOG_DENSITY` times
  the number of action dimensions (about the same for three), since a bound for all would stop the term altogether for a
  humanoid. Outside there is no gradient: an action that has become improbable pulls no more, and a peak stops growing.
  What is clamped is the density of the action before tanh, whose derivative does not depend on the actor and would put
  every action near a bound out of range. Choices among finitely many are not clamped: their gradient is bounded.
* Deterministic actors have no density; -|a - mu(s)|^2 / (2 sigma^2) stands in for its logarithm, sigma the standard
  deviation of the exploration, at least `LEAST_SIGMA`.
* Only every `interval`-th gradient step of the actor has the term (upstream knows such a gap too), since it costs a
  third of a small PPO update at each.
* Only the actor has the term. Some of upstream's versions train the critic on the windows as well.

Dimension letters: U gradient steps prepared at once, L windows of one of them, P L windows drawn, K steps of a window,
S steps of the store, B = L K rows, A action dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from erlcli.core.distribution import Distribution
from erlcli.core.gaussian import StateTanhGaussian, TanhGaussian
from erlcli.core.seeding import derive, generator
from erlcli.core.trajectories import TrajectoryStore
from erlcli.core.types import Rollout

LOG_DENSITY = (-5.0, 1.0)  # of one dimension: three standard deviations off; the peak of a standard deviation of 0.15
LEAST_SIGMA = 0.05  # a schedule of the noise may end at 0
BLOCK_STEPS, BLOCK_BYTES = 64, 16 << 20  # gradient steps whose windows are drawn at once, and memory of these


@dataclass(frozen=True)
class HTermSettings:
    """See `algorithms.config.h_term.HTermConfig`, whose fields these are."""

    horizon: int = 4
    trajectories: int = 16
    pool: int = 2
    interval: int = 2
    weight: float = 0.125
    discount: float = 0.8
    drop_rate: float = 0.125
    min_steps: int = 4096


@dataclass(frozen=True)
class Windows:
    """The steps of the chosen windows of U gradient steps.

    Attributes:
        obs: (U, B, *obs), raw.
        action: (U, B, *action) in the policy's own units.
        gain: (U, B) lambda_H g_H^k R / L; 0 behind the end of an episode.
    """

    obs: Tensor
    action: Tensor
    gain: Tensor


class HTerm:
    """Takes in rollouts, and gives the term for each gradient step of the actor.

    Args:
        settings: of the recipe.
        store: empty.
        seed: of its own draws.

    Attributes:
        ready: whether there is enough to learn from.
        is_due: whether the gradient step of the actor that comes next, or is being taken, has the term.
        windows: of the gradient step that is due, without U; always the same tensors, where compiled steps find them.
    """

    def __init__(self, settings: HTermSettings, store: TrajectoryStore, seed: int) -> None:
        self.settings, self.store = settings, store
        device = store.device
        self.generator = generator(seed, "h_term", device=device)
        self._ahead = torch.arange(settings.horizon, device=device)  # (K,)
        factor = settings.weight / settings.trajectories
        self._factors = torch.tensor([factor * settings.discount ** (k + 1) for k in range(settings.horizon)])
        self._factors = self._factors.to(device)  # (K,)
        step_bytes = store.obs[0].numel() * store.obs.element_size() + store.action[0].numel() * 8
        rows = settings.trajectories * settings.horizon
        self._block = max(1, min(BLOCK_STEPS, BLOCK_BYTES // (rows * step_bytes)))
        self._drawn: list[tuple[Tensor, Tensor, Tensor]] = []  # of the gradient steps to come, the next one last
        self.windows = Windows(
            store.obs.new_zeros((rows, *store.obs.shape[1:])),
            store.action.new_zeros((rows, *store.action.shape[1:])),
            torch.zeros(rows, device=device),
        )
        self.is_due = False
        self._steps = 0  # gradient steps of the actor
        self._fresh = 0  # steps that came in since episodes were dropped
        self._enough = False
        self._sum, self._count = torch.zeros((), device=device), 0

    @property
    def ready(self) -> bool:
        """Once `min_steps` were kept it stays so, though episodes are dropped."""
        return self._enough and len(self.store) > 0

    def step(self) -> bool:
        """A gradient step of the actor comes next: is the term due? If it is, its windows are put in place."""
        self._steps += 1
        self.is_due = self.ready and self._steps % self.settings.interval == 0
        if self.is_due:
            self.take()
        return self.is_due

    def take(self) -> None:
        """Put windows in place for one gradient step."""
        if not self._drawn:
            drawn = self.draw(self._block)
            self._drawn = list(zip(drawn.obs.unbind(0), drawn.action.unbind(0), drawn.gain.unbind(0), strict=True))
        obs, action, gain = self._drawn.pop()
        self.windows.obs.copy_(obs)
        self.windows.action.copy_(action)
        self.windows.gain.copy_(gain)
        self._count += 1

    def add(self, rollout: Rollout) -> None:
        """Take in a rollout, on the learner's device."""
        self.store.add(rollout)
        self._drawn.clear()
        self._fresh += int(rollout.valid.sum())
        self._enough |= len(self.store) >= self.settings.min_steps
        if self._fresh >= self.settings.min_steps:
            self._fresh = 0
            self.store.drop(self.settings.drop_rate)

    def loss(self, log_density: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """lambda_H H / L over the windows in place, a scalar.

        Args:
            log_density: raw observations (B, *obs) and actions (B, *action) to log pi(a|s), (B,), with gradient.
        """
        windows = self.windows
        loss = windows.gain.dot(log_density(windows.obs, windows.action)).neg()
        self._sum += loss.detach()
        return loss

    @torch.no_grad()
    def draw(self, steps: int) -> Windows:
        """Windows for U = `steps` gradient steps."""
        settings, store = self.settings, self.store
        reward = store.reward[store.slots]  # (S,)
        low, high = reward.aminmax()
        span = high - low
        scaled = torch.where(span > 0, (reward - low) / span, 1.0)
        shape = (steps, settings.pool * settings.trajectories)
        start = torch.randint(len(store), shape, generator=self.generator, device=store.device)
        place = start.unsqueeze(-1) + self._ahead  # (U, P L, K)
        within = self._ahead < store.left[start].unsqueeze(-1)
        place = place.clamp(max=len(store) - 1)  # another episode's, or the last: of no weight
        gain = scaled[place] * within * self._factors
        if settings.pool > 1:
            best = gain.sum(-1).topk(settings.trajectories).indices.unsqueeze(-1).expand(-1, -1, len(self._ahead))
            place, gain = place.gather(1, best), gain.gather(1, best)
        slot = store.slots[place].flatten(1)  # (U, B)
        return Windows(store.obs[slot], store.action[slot], gain.flatten(1))

    def metrics(self) -> dict[str, float | Tensor]:
        """The mean term since the last call, and what is kept."""
        mean = self._sum / max(self._count, 1)
        self._sum.zero_()
        self._count = 0
        returns = self.store.returns
        return {
            "h_term/loss": mean,
            "h_term/steps": len(self.store),
            "h_term/episodes": len(returns),
            "h_term/return": returns.sum() / max(len(returns), 1),
        }

    def restart(self, seed: int) -> None:
        """See `Algorithm.restart`."""
        self.generator.manual_seed(derive(seed, "h_term"))
        self._drawn.clear()
        self.store.restart()

    def state_dict(self) -> dict[str, Any]:
        """The episodes and the counters."""
        counters = {"steps": self._steps, "fresh": self._fresh, "enough": self._enough}
        return {"episodes": self.store.state_dict(), **counters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.store.load_state_dict(state["episodes"])
        self._steps, self._fresh, self._enough = int(state["steps"]), int(state["fresh"]), bool(state["enough"])
        self._drawn.clear()


def log_density(distribution: Distribution, params: Tensor, action: Tensor) -> Tensor:
    """The log pi(a|s) of the H-term, (B,): clamped, and of the action before tanh.

    Args:
        distribution: of the actor.
        params: its parameters, with gradient.
        action: (B, *action) as stored; those of squashed distributions are held within their open interval, as
            `Distribution.log_prob` does.
    """
    log_prob = distribution.log_prob(params, action)
    if not action.is_floating_point():
        return log_prob
    if isinstance(distribution, (TanhGaussian, StateTanhGaussian)):
        held = action.clamp(-distribution.EDGE, distribution.EDGE)
        log_prob = log_prob + ((1.0 - held) * (1.0 + held)).log().sum(-1)
    dimensions = action.shape[-1]
    return log_prob.clamp(LOG_DENSITY[0] * dimensions, LOG_DENSITY[1] * dimensions)


def deterministic_log_density(mean: Tensor, action: Tensor, sigma: Tensor) -> Tensor:
    """-|a - mu(s)|^2 / (2 sigma^2), (B,), not below what `log_density` clamps to.

    Args:
        mean: (B, A) mu(s), with gradient.
        action: (B, A) as stored.
        sigma: standard deviation of the exploration, a scalar.
    """
    scaled = (action - mean) / sigma.clamp(min=LEAST_SIGMA)
    return (scaled.square().sum(-1) * -0.5).clamp(min=LOG_DENSITY[0] * action.shape[-1])
