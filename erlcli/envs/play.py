"""Random play of one environment, watched closely: what `probes` judges."""

from __future__ import annotations

import copy
import math
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from erlcli.envs.finding import Finding, Status
from erlcli.envs.returned import scalar

STEP_TUPLE = "(obs, reward, terminated, truncated, info)"
Env = gymnasium.Env[Any, Any]
Transition = tuple[Any, Any, Any, Any]  # obs, reward, terminated, truncated


class Fault(Exception):  # noqa: N818 - a verdict on the env, no error of ours
    """What makes further play pointless.

    Args:
        finding: to report.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True)
class Issue:
    """One thing about an observation.

    Attributes:
        status: how bad.
        text: what, naming the part.
        remedy: what to do about it.
    """

    status: Status
    text: str
    remedy: str


@dataclass
class Played:
    """What random play has shown.

    Attributes:
        lengths: of ended episodes, in steps.
        returns: of ended episodes.
        endings: how many terminated, truncated, or did both.
        rewards: lowest and highest.
        reward_types: names of the types seen.
        flag_types: names of the types of terminated and truncated.
        values: lowest and highest number in an observation.
        issue: the first thing about an observation that is odd but no failure.
        reused: an observation changed, or shared memory with a later one, after it had been handed out.
        steps: in all.
    """

    lengths: list[int] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    rewards: tuple[float, float] = (math.inf, -math.inf)
    reward_types: Counter[str] = field(default_factory=Counter)
    flag_types: Counter[str] = field(default_factory=Counter)
    values: tuple[float, float] = (math.inf, -math.inf)
    issue: Issue | None = None
    reused: bool = False
    steps: int = 0


def issues(space: spaces.Space[Any], obs: Any, path: str = "obs") -> Iterator[Issue]:  # noqa: ANN401
    """Where `obs` departs from its space, whatever is worst first within each part."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping) or set(obs) != set(space.spaces):
            found = f"the keys {sorted(map(str, obs))}" if isinstance(obs, Mapping) else f"a {type(obs).__name__}"
            expected = ", ".join(map(str, space.spaces))
            yield Issue("fail", f"{path} is {found}; the space has the keys {expected}", "return exactly these keys")
            return
        for key, part in space.spaces.items():
            yield from issues(part, obs[key], f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            yield Issue("fail", f"{path} is no tuple of {len(space.spaces)}", "return one entry a subspace")
            return
        for i, part in enumerate(space.spaces):
            yield from issues(part, obs[i], f"{path}[{i}]")
    elif isinstance(space, spaces.Box):
        yield from _box_issues(space, obs, path)
    elif not space.contains(obs):
        yield Issue("fail", f"{path} = {obs!r:.60} is not in {space!s:.80}", "return what the space declares")


def _box_issues(space: spaces.Box, obs: Any, path: str) -> Iterator[Issue]:  # noqa: ANN401 - whatever came
    try:
        array = np.asarray(obs)
    except ValueError:
        yield Issue("fail", f"{path} is a ragged {type(obs).__name__}", "return a numpy array")
        return
    if array.shape != space.shape or array.dtype.kind not in "biuf":
        found = f"of {array.dtype} {array.shape}"
        yield Issue("fail", f"{path} is {found}, its space is {space.dtype} {space.shape}", "make both agree")
        return
    if not np.isfinite(array).all():
        where = tuple(int(x) for x in np.argwhere(~np.isfinite(array))[0])
        yield Issue("fail", f"{path} has {array[where]} at {list(where)}", "find the division, root or log behind it")
        return
    if space.dtype == np.uint8 and array.dtype.kind == "f":
        yield Issue("fail", f"{path} is {array.dtype} where its space says uint8", "declare a float space, or cast")
        return
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        where = tuple(int(x) for x in np.argwhere(outside)[0])
        bounds = f"{space.low[where]:g} ... {space.high[where]:g}"
        yield Issue(
            "warn",
            f"{path}{list(where)} = {array[where]:g}, outside of its bounds {bounds}",
            "widen the space's bounds",
        )
    if not isinstance(obs, np.ndarray) and space.shape:
        yield Issue("warn", f"{path} is a {type(obs).__name__}; erl makes an array of it", "return a numpy array")
    elif array.dtype != space.dtype:
        yield Issue(
            "warn", f"{path} is {array.dtype}, its space says {space.dtype}; erl converts", f"cast to {space.dtype}"
        )


def leaves(obs: Any) -> Iterator[NDArray[Any]]:  # noqa: ANN401 - whatever came
    """The arrays of an observation."""
    if isinstance(obs, Mapping):
        for part in obs.values():
            yield from leaves(part)
    elif isinstance(obs, (tuple, list)) and any(isinstance(part, (np.ndarray, Mapping, tuple)) for part in obs):
        for part in obs:
            yield from leaves(part)
    else:
        yield np.asarray(obs)


def same(a: Any, b: Any) -> bool:  # noqa: ANN401 - observations
    """Whether two observations are equal to the last bit."""
    pairs = list(zip(leaves(a), leaves(b), strict=False))
    return len(list(leaves(a))) == len(list(leaves(b))) and all(np.array_equal(x, y) for x, y in pairs)


def reset(env: Env, seed: int | None) -> Any:  # noqa: ANN401 - an observation
    """The first observation.

    Raises:
        Fault: there is none.
    """
    try:
        result = env.reset(seed=seed)
    except Exception as error:
        remedy = None
        if isinstance(error, TypeError) and "seed" in str(error):
            remedy = "def reset(self, *, seed=None, options=None), as gymnasium calls it"
        raise Fault(raised("reset", f"reset(seed={seed})", error, remedy)) from error
    if not isinstance(result, tuple) or len(result) != 2:
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
        raise Fault(Finding("reset", "fail", f"reset() returned {found}", "return obs, info", {"seed": seed}))
    return result[0]


def step(env: Env, action: Any, where: str) -> Transition:  # noqa: ANN401 - of any space
    """One transition.

    Raises:
        Fault: there is none.
    """
    try:
        result = env.step(action)
    except Exception as error:
        raise Fault(raised("step", f"step({str(action)[:60]}), {where},", error)) from error
    if not isinstance(result, tuple) or len(result) != 5:
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"one {type(result).__name__}"
        remedy = f"return {STEP_TUPLE}"
        raise Fault(Finding("step", "fail", f"step() returned {found}", remedy, {"where": where}))
    return result[:4]


def raised(name: str, call: str, error: Exception, remedy: str | None = None) -> Finding:
    """The finding for an exception from within the env, with the line that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = Path(last.filename).parent == Path(__file__).parent
    where = "" if ours else f" ({last.filename}:{last.lineno})"
    return Finding(
        name,
        "fail",
        f"{call} raised {type(error).__name__}: {error}{where}",
        remedy or "mend that line; --json has the whole traceback",
        {"traceback": "".join(traceback.format_exception(error))},
    )


def play(env: Env, seed: int, episodes: int, steps: int, deadline: float) -> Played:
    """Random actions until `episodes` have ended, `steps` were made or the deadline has come.

    Raises:
        Fault: the env failed, or returned what can't be trained on.
    """
    seen = Played()
    env.action_space.seed(seed)
    obs = reset(env, seed)
    score, length = 0.0, 0
    while seen.steps < steps and len(seen.lengths) < episodes and time.monotonic() < deadline:
        where = f"episode {len(seen.lengths)}, step {length + 1}, seed {seed}"
        before, kept = obs, copy.deepcopy(obs)
        obs, reward, terminated, truncated = step(env, env.action_space.sample(), where)
        seen.steps += 1
        length += 1
        score += _watch_reward(seen, reward, where)
        ends = [_watch_flag(seen, name, flag) for name, flag in (("terminated", terminated), ("truncated", truncated))]
        _watch_obs(seen, env.observation_space, obs, where)
        seen.reused = seen.reused or not same(before, kept) or _overlap(before, obs)
        if any(ends):
            seen.endings["both at once" if all(ends) else "terminated" if ends[0] else "truncated"] += 1
            seen.lengths.append(length)
            seen.returns.append(score)
            score, length = 0.0, 0
            obs = reset(env, None)
            _watch_obs(seen, env.observation_space, obs, f"after reset {len(seen.lengths)}, seed {seed}")
    return seen


def _overlap(before: Any, after: Any) -> bool:  # noqa: ANN401 - observations
    return any(np.may_share_memory(a, b) for a in leaves(before) for b in leaves(after))


def _watch_obs(seen: Played, space: spaces.Space[Any], obs: Any, where: str) -> None:  # noqa: ANN401
    for issue in issues(space, obs):
        if issue.status == "fail":
            raise Fault(Finding("values", "fail", f"{issue.text} ({where})", issue.remedy))
        seen.issue = seen.issue or issue
    for leaf in leaves(obs):
        if leaf.size and leaf.dtype.kind in "biuf":
            seen.values = (min(seen.values[0], float(leaf.min())), max(seen.values[1], float(leaf.max())))


def _watch_reward(seen: Played, reward: Any, where: str) -> float:  # noqa: ANN401 - whatever came
    kind = f"array of shape {reward.shape}" if isinstance(reward, np.ndarray) else type(reward).__name__
    value = scalar(reward)
    if value is None:
        found = f"the reward {reward!r:.80} is no number ({where})"
        raise Fault(Finding("reward", "fail", found, "return a float"))
    if not math.isfinite(value):
        raise Fault(
            Finding("reward", "fail", f"the reward is {value} ({where})", "find the division, root or log in it")
        )
    seen.reward_types[kind] += 1
    seen.rewards = (min(seen.rewards[0], value), max(seen.rewards[1], value))
    return value


def _watch_flag(seen: Played, name: str, flag: Any) -> bool:  # noqa: ANN401 - whatever came
    value = scalar(flag)
    if value is None:
        raise Fault(Finding("flags", "fail", f"{name} is {flag!r:.60}, no boolean", "return True or False"))
    kind = f"array of shape {flag.shape}" if isinstance(flag, np.ndarray) else type(flag).__name__
    seen.flag_types[kind] += 1
    return bool(value)


def trace(env: Env, seed: int, actions: list[Any], deadline: float) -> list[Transition]:
    """The transitions that `actions` lead to from a seeded reset, through ends of episodes; the first is the reset.

    Raises:
        Fault: the env failed.
    """
    rows: list[Transition] = [(copy.deepcopy(reset(env, seed)), 0.0, False, False)]
    for t, action in enumerate(actions):
        if time.monotonic() > deadline:
            break
        obs, reward, terminated, truncated = step(env, action, f"step {t + 1} after a reset, seed {seed}")
        rows.append((copy.deepcopy(obs), scalar(reward), scalar(terminated), scalar(truncated)))
        if terminated or truncated:
            rows.append((copy.deepcopy(reset(env, None)), 0.0, False, False))
    return rows


def difference(a: list[Transition], b: list[Transition]) -> int | None:
    """The first row in which two traces differ; None where they agree as far as both go."""
    for t, (x, y) in enumerate(zip(a, b, strict=False)):
        if not same(x[0], y[0]) or x[1:] != y[1:]:
            return t
    return None
