"""N copies of a `TorchEnv`, stepped by tensor operations on one device, with same-step autoreset.

A step has fixed shapes, keeps its state at fixed addresses, draws as many random numbers whatever happens, and never
waits for the device. Which episodes ended is therefore never looked up: all copies are reset at every step, and a mask
chooses whose reset counts. For the same reason `Step.next_obs` is given in the place of `Step.final_obs`, and numbers
that are not finite are only noted; `verify` looks at the notes.

On a CPU a step of few copies is mostly the overhead of its operations. Those of environments that come with `erl` may
therefore be machine code (`core.compiled`), to which the random numbers of a step are given.

Dimension letters: N environments.
"""

from __future__ import annotations

import functools
import hashlib
import shlex
import traceback
from pathlib import Path

import gymnasium
import torch
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.compiled import Compiler
from erlcli.core.readback import Readback
from erlcli.core.seeding import derive
from erlcli.core.types import EnvSpec, Step
from erlcli.envs.config import EnvConfig, torch_refusal
from erlcli.envs.position import PositionLog
from erlcli.envs.torch_check import check_methods, some_units, spaces_of
from erlcli.envs.torch_env import Draw, OtherDraw
from erlcli.envs.torch_find import make_torch_env
from erlcli.errors import EnvError, RecipeError

PACKAGE = "erlcli."


class TorchVecEnv:
    """See the module's docstring and `VecEnv`.

    Args:
        config: the environment; `num_envs` copies of it on `device`.
        position: told of every call into them.
        compiler: compiles steps; None leaves them to PyTorch.

    Raises:
        RecipeError: `env.id` names no TorchEnv, its spaces are of no supported kind, or the config asks for what this
            backend does not do.
        EnvError: it fails, or one of its methods returns what it should not.
    """

    def __init__(
        self, config: EnvConfig, position: PositionLog | None = None, compiler: Compiler | None = None
    ) -> None:
        if refusal := torch_refusal(config):
            raise RecipeError(f"env.backend: torch can't do this: {refusal}", remedy="leave that key out")
        self.config = config
        self._position = position or PositionLog()
        self.env = make_torch_env(config)
        self.generator: torch.Generator | None = self.env.generator
        self.spec = EnvSpec(
            *spaces_of(self.env, config.id),
            config.num_envs,
            config.max_episode_steps or self.env.max_episode_steps,
            device=self.env.device,
            gives_next_obs=True,
            capturable=self.env.capturable,
        )
        self._map = ActionMap(self.spec.action).to(self.env.device)
        first = check_methods(self.env, self.spec, config.id)
        self._state = tuple(tensor.clone() for tensor in first)  # (N, ...) each, at the same place for ever
        self._masks = [(config.num_envs, *[1] * (tensor.ndim - 1)) for tensor in first]  # shapes that broadcast
        self._age = torch.zeros(config.num_envs, dtype=torch.int64, device=self.env.device)  # steps of open episodes
        self._always = torch.ones(config.num_envs, dtype=torch.bool, device=self.env.device)
        self._health = torch.zeros(config.num_envs, device=self.env.device)  # NaN where anything was not finite
        self._notes: list[Readback] = []  # of earlier rollouts, on their way
        self._floats = self.spec.obs.dtype == "float32"
        self._seed = self._steps = 0
        compiler = compiler or Compiler()
        self._run = compiler.compile("env step", TorchVecEnv._advance, (_sources(),), refusal=self._refusal())
        self._draws: tuple[Draw, ...] = ()  # of a step, known from its first
        self._draws = self._asked()

    @torch.no_grad()
    def _asked(self) -> tuple[Draw, ...]:
        """What a step draws, to be given to it; nothing where it may be now this, now that."""
        if not self.env.capturable:
            return ()
        units = some_units(self.spec)
        try:
            return self.env.asks(lambda: self._advance(units, ()))
        except Exception as error:
            raise self._failure("step", error) from error

    def _refusal(self) -> str | None:
        """Why a step can't be machine code; None if it can."""
        if not self.env.capturable:
            return "the environment says of itself that it is not capturable"
        if not type(self.env).__module__.startswith(PACKAGE):
            return "code outside of erl may change without a sign, and what was compiled of it would not"
        return None

    @torch.no_grad()
    def reset(self, seed: int, first_index: int = 0) -> Tensor:
        """See `VecEnv.reset`. One stream of random numbers serves all environments of a process."""
        self._seed, self._steps = derive(seed, "torch", first_index), 0
        self._position.note("reset", None, self._seed, None, 0)
        self.env.generator.manual_seed(self._seed)
        self._age.zero_()
        self._health.zero_()
        self.env.give(())
        try:
            for place, value in zip(self._state, self.env.initial(), strict=True):
                place.copy_(value)
            return self.env.observe(self._state)
        except Exception as error:
            raise self._failure("reset", error) from error

    def first_mask(self) -> Tensor | None:
        """See `VecEnv.first_mask`; there are no masks here."""
        return None

    @torch.no_grad()
    def step(self, action: Tensor) -> Step:
        """See `VecEnv.step`. A step that both terminates and reaches the limit counts as terminated."""
        self._steps += 1
        self._position.note("step", None, self._seed, None, self._steps)
        try:
            numbers = tuple([draw.make(self.env.generator) for draw in self._draws])
            obs, reward, terminated, truncated, next_obs = self._run(self, action, numbers)
        except OtherDraw as error:
            raise self._other_draw(error) from None
        except Exception as error:
            raise self._failure("step", error) from error
        return Step(obs, reward, terminated, truncated, self._always, next_obs=next_obs)

    def _advance(self, action: Tensor, numbers: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step: observations, rewards, terminated, truncated, next observations.

        Args:
            action: (N, *action) in a policy's units.
            numbers: random ones, those that it asks for.
        """
        env, limit = self.env, self.spec.max_episode_steps
        env.give(tuple(zip(self._draws, numbers, strict=True)))
        state, reward, terminated = env.dynamics(self._state, self._map(action))
        next_obs = env.observe(state)
        truncated = torch.zeros_like(terminated)
        ended = terminated
        if limit is not None:
            self._age.add_(1)
            over = self._age >= limit
            truncated, ended = over & ~terminated, over | terminated
            self._age.masked_fill_(ended, 0)
        begun = env.initial()
        following = [torch.where(ended.view(m), b, s) for m, b, s in zip(self._masks, begun, state, strict=True)]
        for place, value in zip(self._state, following, strict=True):
            place.copy_(value)
        self._health.add_(reward, alpha=0.0)  # 0 times NaN or infinity is NaN, which stays
        if self._floats:
            self._health.add_(next_obs.reshape(len(next_obs), -1).sum(1), alpha=0.0)
        return env.observe(self._state), reward, terminated, truncated, next_obs

    def verify(self) -> None:
        """See `VecEnv.verify`."""
        self._notes.append(Readback(self._health))
        while self._notes and (len(self._notes) > 1 or self._notes[0].ready):
            self._check(self._notes.pop(0).get().isfinite())

    def _check(self, finite: Tensor) -> None:
        if bool(finite.all()):
            return
        n = int(finite.logical_not().nonzero()[0])
        raise EnvError(
            f"env.id {self.config.id}: environment {n} of {self.spec.num_envs} (seed {self._seed}) gave an observation "
            f"or reward that is NaN or infinite, within its first {self._steps} steps since it was seeded",
            expected="finite observations and rewards",
            remedy="find the division, root or log behind it",
            details={"env_index": n, "seed": self._seed, "step": self._steps, "traceback": None},
        )

    def close(self) -> None:
        """See `VecEnv.close`; there is nothing but memory."""

    def _other_draw(self, error: OtherDraw) -> EnvError:
        return EnvError(
            f"env.id {self.config.id}: {error}",
            expected="the same draws at every step, in the same order: whoever records a step makes them before it",
            remedy="draw within fixed bounds and scale the numbers by a tensor, or set capturable = False in the class",
            details={
                "seed": self._seed,
                "step": self._steps,
                "traceback": "".join(traceback.format_exception(error)),
            },
        )

    def _failure(self, call: str, error: Exception) -> EnvError:
        return EnvError(
            f"env.id {self.config.id}: {call} of all {self.spec.num_envs} environments (seed {self._seed}, step "
            f"{self._steps}) raised {type(error).__name__}: {error}",
            expected="tensors of fixed shapes from initial, dynamics and observe",
            remedy=f"erl envs check {shlex.quote(self.config.id)} looks for such faults",
            details={
                "seed": self._seed,
                "step": self._steps,
                "traceback": "".join(traceback.format_exception(error)),
            },
        )


@functools.cache
def _sources() -> str:
    """Of all that decides what a shipped environment does, beside its config."""
    digest = hashlib.sha256(gymnasium.__version__.encode())  # which has constants of some
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
