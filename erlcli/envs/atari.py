"""Atari games as they are learnt from: Mnih et al., "Human-level control through deep reinforcement learning" (2015).

Every action is repeated over four frames; an observation is the maximum over the last two of them (sprites flicker),
grey, 84 x 84. A game starts with up to 30 frames without action. In training, and only there, rewards are cut to their
sign and the loss of a life ends an episode, after which the game goes on; what the game itself gave, and whether it is
over, goes along in `info`, so that the training curve too shows whole games. Where a game has a FIRE action, it is
pressed at the start of every life, in evaluation as in training: a policy that never had to learn it is lost without.

The emulator is driven directly: an observation of gymnasium's would be drawn at each of the four frames.

Dimension letters: H height, W width of the emulator's screen, S size of an observation.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from erlcli.envs.config import AtariConfig
from erlcli.errors import RecipeError

NOOP = 0
GAME_REWARD, GAME_OVER = "game_reward", "game_over"  # keys in info


class AtariGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """See the module's docstring.

    Args:
        env: of ale-py, with a frame skip of 1.
        config: the `[env.atari]` section.
        limit: steps of a game, each of several frames; reaching it truncates.
        training: whether lives end episodes and rewards are cut, where the config says so.

    Raises:
        RecipeError: it is no Atari environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], config: AtariConfig, limit: int, training: bool) -> None:
        super().__init__(env)
        bare: Any = env.unwrapped
        if not hasattr(bare, "ale") or not isinstance(env.action_space, spaces.Discrete):
            raise RecipeError(
                "env.atari: not an Atari game with a choice of actions",
                expected="an id such as ALE/Pong-v5",
                found=type(bare).__name__,
                remedy="leave [env.atari] out",
            )
        self.config, self.limit = config, limit
        self._lives_end = config.life_ends_episode and training
        self._clip = config.clip_reward and training
        self._ale = bare.ale
        self._actions = list(bare._action_set)
        self._fire = bare.get_action_meanings().index("FIRE") if config.fire and self._can_fire(bare) else None
        height, width = self._ale.getScreenDims()
        depth = () if config.grey else (3,)
        self._screens = np.zeros((2, height, width, *depth), dtype=np.uint8)
        self._rows, self._columns = taps(height, config.size), taps(width, config.size)
        shape = (config.size, config.size, *depth)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._random = np.random.default_rng()
        self._lives = self._steps = 0
        self._over = True

    @staticmethod
    def _can_fire(bare: Any) -> bool:  # noqa: ANN401 - of ale-py
        return "FIRE" in bare.get_action_meanings()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new game; without a seed, after a life was lost that ended an episode, the next life of this one."""
        info: dict[str, Any] = {}
        if seed is not None:
            self._random = np.random.default_rng(seed)
        if self._over or seed is not None or not self._lives_end:
            _, info = self.env.reset(seed=seed, options=options)
            for _ in range(int(self._random.integers(1, self.config.noop_max + 1)) if self.config.noop_max else 0):
                self._ale.act(self._actions[NOOP], 1.0)
                if self._ale.game_over():
                    self.env.reset()
            self._steps, self._over = 0, False
        if self._fire is not None:
            self._ale.act(self._actions[self._fire], 1.0)
            if self._ale.game_over():
                self.env.reset()
        self._lives = self._ale.lives()
        self._draw(0)
        return self._shrunk(self._screens[0]), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ANN401 - an integer
        """`frame_skip` frames with one action."""
        skip, total, frames = self.config.frame_skip, 0.0, 0
        chosen = self._actions[action]
        for frame in range(skip):
            total += self._ale.act(chosen, 1.0)
            over = self._ale.game_over()
            if frame >= skip - 2 or over:
                self._draw(frames % 2)
                frames += 1
            if over:
                break
        self._steps += 1
        terminated = self._ale.game_over(with_truncation=False)
        truncated = not terminated and (self._ale.game_truncated() or self._steps >= self.limit)
        lives, lost = self._ale.lives(), False
        if lives < self._lives and not terminated:
            lost = self._lives_end
            if not lost and self._fire is not None:  # otherwise reset() presses it
                total += self._ale.act(self._actions[self._fire], 1.0)
        self._lives = lives
        self._over = terminated or truncated
        info = {GAME_REWARD: total, GAME_OVER: self._over, "lives": lives}
        reward = float(np.sign(total)) if self._clip else float(total)
        newest = self._screens[0] if frames == 1 else np.maximum(self._screens[0], self._screens[1])
        return self._shrunk(newest), reward, terminated or lost, truncated, info

    def _draw(self, place: int) -> None:
        if self.config.grey:
            self._ale.getScreenGrayscale(self._screens[place])
        else:
            self._ale.getScreenRGB(self._screens[place])

    def _shrunk(self, screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(H, W) or (H, W, 3) to (S, S) or (S, S, 3), each pixel the mean of the area that it covers."""
        # A few products by hand: a matrix product would wake the threads of the BLAS for each frame.
        if self.config.grey:
            return _shrink(screen, self._rows, self._columns)
        return np.stack([_shrink(screen[..., c], self._rows, self._columns) for c in range(3)], axis=-1)


Taps = tuple[NDArray[np.int64], NDArray[np.float32]]
"""(K, S) source pixels that a target pixel is made of, and the weight of each."""


def _shrink(plane: NDArray[np.uint8], rows: Taps, columns: Taps) -> NDArray[np.uint8]:
    low: NDArray[np.float32] = (plane[rows[0]] * rows[1][:, :, None]).sum(0)  # (S, W)
    small = (low[:, columns[0]] * columns[1]).sum(1)  # (S, S)
    shrunk: NDArray[np.uint8] = np.rint(small, out=small).astype(np.uint8)
    return shrunk


def taps(source: int, target: int) -> Taps:
    """`area` without its zeros."""
    weights = area(source, target)
    first = (weights > 0).argmax(axis=1)
    count = int((weights > 0).sum(axis=1).max())
    index = first + np.arange(count)[:, None]
    inside = np.minimum(index, source - 1)
    chosen = weights[np.arange(target), inside] * (index < source)
    return inside, chosen.astype(np.float32)


def area(source: int, target: int) -> NDArray[np.float32]:
    """(target, source) weights of each source pixel in each target pixel: the shares of its extent that it covers."""
    scale = source / target
    edges = np.arange(target + 1) * scale
    pixels = np.arange(source)
    covered = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares: NDArray[np.float32] = (np.clip(covered, 0.0, 1.0) / scale).astype(np.float32)
    return shares
