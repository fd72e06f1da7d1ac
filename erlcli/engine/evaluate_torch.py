"""Evaluation in environments that are tensors: all episodes are played at once, on the CPU.

Dimension letters: E episodes, S numbers of a state.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.policy import Policy
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec
from erlcli.engine.evaluate import MAX_STEPS, Evaluation, Scores, endless, not_finite
from erlcli.engine.failures import Interrupted
from erlcli.envs.config import TWINS, EnvConfig, choose_backend
from erlcli.envs.position import PositionLog
from erlcli.envs.torch_check import check_methods, spaces_of
from erlcli.envs.torch_env import State, TorchEnv
from erlcli.envs.torch_find import make_torch_env
from erlcli.errors import EnvError

AT_ONCE = 4096  # episodes, at most


def make_evaluation(config: EnvConfig, seed: int, position: PositionLog | None = None) -> Evaluation | TorchEvaluation:
    """What evaluates in an environment, without pictures; arguments and errors as of `Evaluation`."""
    # What was trained in a twin of a gymnasium environment is judged in that one.
    if choose_backend(config)[0] == "torch" and config.id not in TWINS:
        return TorchEvaluation(config, seed, position)
    return Evaluation(config, seed, position=position)


class TorchEvaluation:
    """Plays episodes of one `TorchEnv`.

    Every episode has a copy of the environment to itself, so that short ones aren't preferred. Its first state depends
    on the evaluation's seed and its number alone. Where the dynamics are random too, all that are played at once draw
    from one stream, so that equal calls give equal scores.

    Args:
        config: the env; `num_envs` and `device` don't matter here.
        seed: of the fixed set of episodes.
        position: told of every call into the env.

    Attributes:
        at_once: episodes that are played together.

    Raises:
        RecipeError: there is no such env, or its spaces are of no supported kind.
        EnvError: the env fails.
    """

    def __init__(self, config: EnvConfig, seed: int, position: PositionLog | None = None) -> None:
        self.config, self.seed, self.at_once = config, seed, AT_ONCE
        self._position = position or PositionLog()
        self._one = self._make(1)
        self.spec = EnvSpec(*spaces_of(self._one, config.id), 1)
        check_methods(self._one, self.spec, config.id)
        self.limit = config.max_episode_steps or self._one.max_episode_steps
        self._max_steps = max(MAX_STEPS, self.limit or 0)
        self.render_modes = ["rgb_array"] if self._one.draws() else []
        self._map = ActionMap(self.spec.action)

    def _make(self, count: int) -> TorchEnv:
        return make_torch_env(replace(self.config, num_envs=count, device="cpu"))

    def run(
        self,
        policy: Policy,
        episodes: Sequence[int],
        *,
        on_step: Callable[[int], None] | None = None,
        on_episode: Callable[[int, float, int], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Scores:
        """Play the numbered episodes; arguments and errors as of `Evaluation.run`."""
        scores = Scores()
        for first in range(0, len(episodes), self.at_once):
            numbers = episodes[first : first + self.at_once]
            done = len(scores.returns)
            told = None if on_step is None else lambda count, before=done, tell=on_step: tell(before + count)
            scores += self._play(policy, numbers, told, on_episode, stop)
        return scores

    @torch.inference_mode()
    def _play(
        self,
        policy: Policy,
        episodes: Sequence[int],
        on_step: Callable[[int], None] | None,
        on_episode: Callable[[int, float, int], None] | None,
        stop: Callable[[], bool],
    ) -> Scores:
        env, count = self._make(len(episodes)), len(episodes)
        total, length = torch.zeros(count, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)  # (E,)
        alive = torch.ones(count, dtype=torch.bool)  # (E,)
        memory = policy.initial_state(count, torch.device("cpu"))  # (E, S)
        state, steps = self._starts(env, episodes), 0
        obs = env.observe(state)
        while len(at_play := alive.nonzero().squeeze(1)):
            if stop():
                raise Interrupted
            raw, memory = (policy.act_greedy(obs), None) if policy.plain else policy.step_greedy(obs, None, memory)
            if raw.is_floating_point() and not bool(raw[at_play].isfinite().all()):
                raise not_finite(raw)
            steps += 1
            self._position.note("step", None, self.seed, None, steps)
            try:
                state, reward, terminated = env.dynamics(state, self._map(raw))
                obs = env.observe(state)
            except Exception as error:
                raise self._failure(f"raised {type(error).__name__}: {error}", episodes, steps, error) from error
            self._check(obs, reward, alive, episodes, steps)
            total += reward.masked_fill(~alive, 0.0)  # what goes on after its end counts for nothing
            length += alive
            ended = alive & terminated if self.limit is None or steps < self.limit else alive.clone()
            alive &= ~ended
            if on_episode is not None:
                for i in ended.nonzero().squeeze(1).tolist():
                    on_episode(episodes[i], float(total[i]), int(length[i]))
            if on_step is not None:
                on_step(count - int(alive.sum()))
            if steps >= self._max_steps and bool(alive.any()):
                raise endless(self.config.id, episodes[int(alive.nonzero()[0])], self.seed, steps)
        return Scores(total.tolist(), length.tolist())

    def _starts(self, env: TorchEnv, episodes: Sequence[int]) -> State:
        """First states, each from its own seed; the rest of the draws come from a stream of all."""
        rows: list[State] = []
        for episode in episodes:
            seed = derive(self.seed, "eval", episode)
            self._position.note("reset", None, seed, episode, 0)
            self._one.generator.manual_seed(seed)
            rows.append(self._one.initial())
        env.generator.manual_seed(derive(self.seed, "eval", "dynamics", episodes[0]))
        return tuple(torch.cat(column) for column in zip(*rows, strict=True))

    def _check(self, obs: Tensor, reward: Tensor, alive: Tensor, episodes: Sequence[int], steps: int) -> None:
        """Whether all that are still at play have finite observations and rewards."""
        fine = reward.isfinite()
        if obs.is_floating_point():
            fine &= obs.reshape(len(obs), -1).isfinite().all(1)
        if bool((fine | ~alive).all()):
            return
        i = int((~fine & alive).nonzero()[0])
        what = f"returned an observation or reward that is NaN or infinite in evaluation episode {episodes[i]}"
        raise self._failure(what, episodes[i : i + 1], steps, None)

    def _failure(self, what: str, episodes: Sequence[int], steps: int, error: Exception | None) -> EnvError:
        return EnvError(
            f"env.id {self.config.id}: step {steps} {what}",
            expected="a transition with finite observations and rewards",
            remedy=f"erl envs check {shlex.quote(self.config.id)} looks for such faults",
            details={
                "episode": episodes[0],
                "seed": self.seed,
                "step": steps,
                "traceback": "".join(traceback.format_exception(error)) if error is not None else None,
            },
        )

    def close(self) -> None:
        """See `Evaluation.close`; there is nothing but memory."""
