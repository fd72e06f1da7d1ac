"""Evaluation of a policy: exactly so many episodes, from a fixed set of seeds, without exploration.

Dimension letters: N environments.
"""

from __future__ import annotations

import math
import numbers
import shlex
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from erlcli.core.actions import ActionMap
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.statistics import bootstrap_ci, iqm
from erlcli.core.types import EnvSpec
from erlcli.engine.failures import Interrupted
from erlcli.engine.video import Frame, picture, rendering_env
from erlcli.envs.config import EnvConfig
from erlcli.envs.masks import MaskFault, check_unused, mask_reader
from erlcli.envs.parts import BadObservation
from erlcli.envs.position import PositionLog
from erlcli.envs.returned import copy_obs, scalar
from erlcli.envs.single import close_all, make_env
from erlcli.envs.spaces import action_space, obs_box
from erlcli.errors import DivergedError, EnvError

DEFAULT_FPS = 30.0  # of envs that don't say
MAX_STEPS = 1_000_000  # of an episode, where no longer limit is set: nobody means to wait for its end


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
        """Statistics of at least one episode as `erl eval --json` prints them; `seed` is of the bootstrap."""
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


def not_finite(action: torch.Tensor) -> DivergedError:
    """The error for a policy's action that is NaN or infinite."""
    return DivergedError(
        "the policy gives an action that is NaN or infinite",
        expected="finite actions for finite observations",
        found=f"{action.flatten().tolist()!r:.100}",
        remedy="evaluate an earlier checkpoint: --checkpoint STEPS",
    )


def frames_per_second(told: Any) -> float:  # noqa: ANN401 - whatever an env says of itself
    """Of films of an env whose metadata tells `told`; the default where that is no rate."""
    if isinstance(told, numbers.Real) and 0 < float(told) < math.inf:
        return float(told)
    return DEFAULT_FPS


def endless(env_id: str, episode: int, seed: int, steps: int) -> EnvError:
    """The error for an episode that goes on and on, which would be waited for in silence."""
    return EnvError(
        f"env.id {env_id}: evaluation episode {episode} (seed {seed}) has no end after {steps:,} steps",
        expected="an env that terminates or truncates its episodes, or a time limit",
        remedy="set env.max_episode_steps",
        details={"episode": episode, "seed": seed, "step": steps},
    )


@dataclass
class _Seat:
    """One environment, and what it has to play.

    Attributes:
        number: among the environments.
        env: of its own.
        places: positions in the list of episodes, the one at play first.
        seed: of the episode at play.
        steps: of the episode at play.
        total: return of the episode at play.
    """

    number: int
    env: gymnasium.Env[Any, Any]
    places: list[int]
    seed: int = 0
    steps: int = 0
    total: float = 0.0


class Evaluation:
    """Plays episodes of one environment.

    An episode's seed depends on the evaluation's seed and the episode's number alone. How many environments take turns
    therefore changes no start state; only the rounding of matrix products may depend on their number.

    Args:
        config: the env with its training wrappers; `num_envs` are stepped together.
        seed: of the fixed set: episode i always starts from the same state.
        render_mode: of the first environment.
        position: told of every call into one of them.

    Attributes:
        at_once: episodes that are played together.

    Raises:
        RecipeError: there is no such env, or its spaces are of no supported kind.
        EnvError: the env fails while it is made, or knows no such render mode.
    """

    def __init__(
        self,
        config: EnvConfig,
        seed: int,
        render_mode: str | None = None,
        position: PositionLog | None = None,
    ) -> None:
        self.config, self.at_once = config, config.num_envs
        self._max_steps = max(MAX_STEPS, config.limit or 0)
        self._position = position or PositionLog()
        self.seed = seed
        self.envs: list[gymnasium.Env[Any, Any]] = []
        try:
            self.envs.append(make_env(config) if render_mode is None else rendering_env(config, render_mode))
            self.envs.extend(make_env(config) for _ in range(config.num_envs - 1))
            env = self.envs[0]
            obs = obs_box(env.observation_space, config.id, config.frame_stack)
            action = action_space(env.action_space, config.id)
            reader = mask_reader(env, action, config)
        except BaseException:
            self.close()
            raise
        self.spec = EnvSpec(obs, action, 1, mask=reader.width if reader is not None else 0)
        self._readers = [reader.of(env) for env in self.envs] if reader is not None else []
        self.render_modes = list(env.metadata.get("render_modes") or [])
        self.fps = frames_per_second(env.metadata.get("render_fps"))
        self._map = ActionMap(action)

    def run(
        self,
        policy: Policy,
        episodes: Sequence[int],
        *,
        on_step: Callable[[int], None] | None = None,
        on_episode: Callable[[int, float, int], None] | None = None,
        watch: Callable[[int, int, float], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Scores:
        """Play the numbered episodes.

        Env j plays episodes j, j + N, ...: every env has an equal share, so that short episodes aren't preferred.

        Args:
            policy: acts greedily.
            episodes: numbers within the fixed set.
            on_step: called after each step of all envs with the number of episodes that are done.
            on_episode: called with number, return and length of each episode as it ends.
            watch: called with the first env's episode number, steps and return so far, after each of its resets and
                steps: the moments at which `render` gives the frames of a film.
            stop: whether to give up.

        Raises:
            Interrupted: `stop` said so.
            EnvError: an environment raised, returned something that is no transition, or never ends.
            DivergedError: the policy's action is NaN or infinite.
        """
        count = min(len(self.envs), len(episodes))
        seats = [_Seat(j, self.envs[j], list(range(j, len(episodes), count))) for j in range(count)]
        returns, lengths = [0.0] * len(episodes), [0] * len(episodes)
        obs = np.zeros((count, *self.spec.obs.shape), dtype=self.spec.obs.dtype)  # (N, *obs), ours: envs reuse theirs
        rows, tensor = [obs[j, ...] for j in range(count)], torch.from_numpy(obs)
        mask = np.ones((count, self.spec.mask), dtype=bool)  # (N, C)
        state = policy.initial_state(count, torch.device("cpu"))  # (N, S)

        def begin(j: int) -> None:
            seats[j].steps, seats[j].total = 0, 0.0
            self._reset(seats[j], episodes[seats[j].places[0]], rows[j], mask[j])
            if state is not None:
                with torch.inference_mode():  # which is what it is made in
                    state[j] = 0.0
            if watch is not None and j == 0:
                watch(episodes[seats[0].places[0]], 0, 0.0)

        for j in range(count):
            begin(j)
        active, done = list(range(count)), 0
        while active:
            if stop():
                raise Interrupted
            actions, state = self._actions(policy, tensor, mask, state)
            for j in list(active):
                seat = seats[j]
                place = seat.places[0]
                ended = self._step(seat, actions[j], episodes[place], rows[j], mask[j])
                if watch is not None and j == 0:
                    watch(episodes[place], seat.steps, seat.total)
                if not ended:
                    continue
                done += 1
                returns[place], lengths[place] = seat.total, seat.steps
                if on_episode is not None:
                    on_episode(episodes[place], seat.total, seat.steps)
                seat.places.pop(0)
                if seat.places:
                    begin(j)
                else:
                    active.remove(j)
            if on_step is not None:
                on_step(done)
        return Scores(returns, lengths)

    def _actions(
        self, policy: Policy, obs: torch.Tensor, mask: NDArray[np.bool_], state: torch.Tensor | None
    ) -> tuple[NDArray[Any], torch.Tensor | None]:
        """(N, *action) in the env's units, and what the policy remembers."""
        with torch.inference_mode():
            if policy.plain and not self._readers:
                raw = policy.act_greedy(obs)
            else:
                raw, state = policy.step_greedy(obs, torch.from_numpy(mask) if self._readers else None, state)
            actions: NDArray[Any] = self._map(raw).numpy()
        if raw.is_floating_point() and not bool(torch.isfinite(raw).all()):
            raise not_finite(raw)
        return actions, state

    def _reset(self, seat: _Seat, episode: int, row: NDArray[Any], mask: NDArray[np.bool_]) -> None:
        seat.seed = derive(self.seed, "eval", episode)
        self._position.note("reset", seat.number, seat.seed, episode, 0)
        try:
            result = seat.env.reset(seed=seat.seed)
        except Exception as error:
            raise self._failure("reset", seat, episode, error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._failure("reset", seat, episode, None, f"{result!r:.100}, not (obs, info)")
        self._store("reset", seat, episode, result[0], row)
        if self._readers:
            self._read_mask("reset", seat, episode, result[1], mask)
        else:
            check_unused(result[1], self.spec.action, self.config)

    def _step(
        self,
        seat: _Seat,
        action: Any,  # noqa: ANN401 - of any space
        episode: int,
        row: NDArray[Any],
        mask: NDArray[np.bool_],
    ) -> bool:
        """Step one env; whether its episode is over."""
        seat.steps += 1
        self._position.note("step", seat.number, seat.seed, episode, seat.steps)
        try:
            result = seat.env.step(action)
        except Exception as error:
            raise self._failure("step", seat, episode, error) from error
        if not isinstance(result, tuple) or len(result) != 5:
            what = f"{len(result)} values" if isinstance(result, tuple) else repr(result)[:100]
            raise self._failure("step", seat, episode, None, f"{what}, not (obs, reward, terminated, truncated, info)")
        obs, reward, terminated, truncated, info = result
        self._store("step", seat, episode, obs, row)
        value, ends, cut = scalar(reward), scalar(terminated), scalar(truncated)
        if value is None or not math.isfinite(value):
            raise self._failure("step", seat, episode, None, f"a reward of {reward!r:.100}, no finite number")
        if ends is None or cut is None:
            what = f"flags {terminated!r:.50} and {truncated!r:.50}, no booleans"
            raise self._failure("step", seat, episode, None, what)
        seat.total += value
        if ends or cut:
            return True
        if seat.steps >= self._max_steps:
            raise endless(self.config.id, episode, seat.seed, seat.steps)
        if self._readers:
            self._read_mask("step", seat, episode, info, mask)
        return False

    def _read_mask(self, call: str, seat: _Seat, episode: int, info: Any, mask: NDArray[np.bool_]) -> None:  # noqa: ANN401
        try:
            self._readers[seat.number](info, mask)
        except MaskFault as fault:
            raise self._failure(call, seat, episode, None, f"no transition: the env {fault}") from None
        except Exception as error:
            raise self._failure(call, seat, episode, error) from error

    def _store(self, call: str, seat: _Seat, episode: int, obs: Any, row: NDArray[Any]) -> None:  # noqa: ANN401
        wrong = copy_obs(obs, row)
        if wrong is not None:
            raise self._failure(call, seat, episode, None, wrong)

    def _failure(
        self, call: str, seat: _Seat, episode: int, error: Exception | None, what: str | None = None
    ) -> EnvError:
        where = f"{call} in evaluation episode {episode} (seed {seat.seed}, step {seat.steps})"
        if what is None and isinstance(error, BadObservation):
            what, error = str(error), None
        did = f"returned {what}" if what is not None else f"raised {type(error).__name__}: {error}"
        return EnvError(
            f"env.id {self.config.id}: {where} {did}",
            expected="a transition with a finite observation and reward",
            remedy=f"erl envs check {shlex.quote(self.config.id)} looks for such faults",
            details={
                "episode": episode,
                "seed": seat.seed,
                "step": seat.steps,
                "traceback": "".join(traceback.format_exception(error)) if error is not None else None,
            },
        )

    def render(self) -> Frame:
        """The first environment's picture, (H, W, 3) uint8.

        Raises:
            EnvError: it can't draw, or gives something else.
        """
        return picture(self.envs[0], self.config.id)

    def close(self) -> None:
        """Release the environments."""
        envs, self.envs = self.envs, []
        close_all(envs, self.config.id)
