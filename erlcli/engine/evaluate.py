"""Evaluation of a policy: exactly so many episodes, from a fixed set of seeds, without exploration.

Dimension letters: N environments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from erlcli.core.actions import ActionMap
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec
from erlcli.engine.failures import Interrupted
from erlcli.envs.config import EnvConfig
from erlcli.envs.single import make_env
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import EnvError

Frame = NDArray[np.uint8]


@dataclass
class Scores:
    """Undiscounted returns and lengths, in the order of the episodes.

    Attributes:
        returns: one an episode.
        lengths: in steps.
    """

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __add__(self, other: Scores) -> Scores:
        """Both, one after the other."""
        return Scores(self.returns + other.returns, self.lengths + other.lengths)

    def summary(self, seed: int) -> dict[str, Any]:
        """Statistics as `erl eval --json` prints them; `seed` is of the bootstrap."""
        returns = np.asarray(self.returns)
        low, high = bootstrap_ci(returns, iqm, seed)
        return {
            "episodes": len(returns),
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std()),
            "return_median": float(np.median(returns)),
            "return_iqm": float(iqm(returns)),
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
            "return_ci": [float(x) for x in bootstrap_ci(returns, np.mean, seed)],
            "return_iqm_ci": [low, high],
            "length_mean": float(np.mean(self.lengths)),
            "length_ci": [float(x) for x in bootstrap_ci(np.asarray(self.lengths, float), np.mean, seed)],
        }


def iqm(values: NDArray[Any], axis: int = -1) -> Any:  # noqa: ANN401 - scalar or array
    """Interquartile mean (arXiv 2108.13264): the mean of the middle half, a quarter of the values cut at each end."""
    ordered = np.sort(values, axis=axis)
    count = ordered.shape[axis]
    cut = int(0.25 * count)
    return ordered.take(range(cut, count - cut), axis=axis).mean(axis=axis)


def bootstrap_ci(
    values: NDArray[Any],
    statistic: Callable[..., Any],
    seed: int,
    confidence: float = 0.95,
    samples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap of a statistic that takes `axis`."""
    draws = np.random.default_rng(seed).integers(0, len(values), (samples, len(values)))
    drawn = statistic(values[draws], axis=-1)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return float(low), float(high)


class Evaluation:
    """Runs episodes of one environment.

    Args:
        config: the env with its training wrappers; `num_envs` are stepped together.
        seed: of the fixed set: episode i always starts from the same state.
        render_mode: of the first environment.
    """

    def __init__(self, config: EnvConfig, seed: int, render_mode: str | None = None) -> None:
        self.config = config
        self.seed = seed
        self.envs = [make_env(config, render_mode if i == 0 else None) for i in range(config.num_envs)]
        env = self.envs[0]
        self.spec = EnvSpec(obs_box(env.observation_space, config.id), action_space(env.action_space, config.id), 1)
        self._map = ActionMap(self.spec.action)

    @torch.inference_mode()
    def run(
        self,
        policy: Policy,
        episodes: Sequence[int],
        *,
        on_step: Callable[[int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Scores:
        """Play the numbered episodes.

        Env j plays episodes j, j + N, ...: every env has an equal share, so that short episodes aren't preferred.

        Args:
            policy: acts greedily.
            episodes: numbers within the fixed set.
            on_step: called after each step with the number of episodes that are done.
            stop: whether to give up.

        Raises:
            Interrupted: `stop` said so.
            EnvError: an environment failed.
        """
        count = min(len(self.envs), len(episodes))
        queues = [list(range(j, len(episodes), count)) for j in range(count)]
        returns, lengths = [0.0] * len(episodes), [0] * len(episodes)
        obs = np.zeros((count, *self.spec.obs.shape), dtype=self.spec.obs.dtype)
        tensor = torch.from_numpy(obs)
        for j in range(count):
            obs[j] = self._reset(j, episodes[queues[j][0]])
        active = list(range(count))
        done = 0
        while active:
            if stop():
                raise Interrupted
            actions = self._map(policy.act_greedy(tensor)).numpy()
            for j in list(active):
                place = queues[j][0]
                obs[j], reward, ended = self._step(j, actions[j], episodes[place])
                returns[place] += reward
                lengths[place] += 1
                if ended:
                    done += 1
                    queues[j].pop(0)
                    if queues[j]:
                        obs[j] = self._reset(j, episodes[queues[j][0]])
                    else:
                        active.remove(j)
            if on_step is not None:
                on_step(done)
        return Scores(returns, lengths)

    def _reset(self, j: int, episode: int) -> Any:  # noqa: ANN401 - an observation
        try:
            obs, _ = self.envs[j].reset(seed=derive(self.seed, "eval", episode))
        except Exception as error:
            raise self._failure("reset", episode, error) from error
        return obs

    def _step(self, j: int, action: Any, episode: int) -> tuple[Any, float, bool]:  # noqa: ANN401
        try:
            obs, reward, terminated, truncated, _ = self.envs[j].step(action)
            value = float(np.asarray(reward).reshape(()))
        except Exception as error:
            raise self._failure("step", episode, error) from error
        return obs, value, bool(terminated or truncated)

    def _failure(self, call: str, episode: int, error: Exception) -> EnvError:
        return EnvError(
            f"env.id {self.config.id}: {call} in evaluation episode {episode} raised {type(error).__name__}: {error}",
            remedy=f"erl envs check {self.config.id} looks for such faults",
            details={"seed": derive(self.seed, "eval", episode)},
        )

    def render(self) -> Frame | None:
        """The first environment's picture, (H, W, 3) uint8, or None where its render mode gives none."""
        frame = self.envs[0].render()
        return np.asarray(frame, dtype=np.uint8) if frame is not None else None

    def close(self) -> None:
        """Release the environments."""
        for env in self.envs:
            env.close()
        self.envs = []
