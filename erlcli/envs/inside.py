"""Checks of an environment inside `erl`: autoreset, time limit and speed of its backends."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from erlcli.core.actions import ActionMap
from erlcli.core.host_reads import HostReads
from erlcli.core.seeding import derive
from erlcli.core.types import ActionSpace, Box, Discrete, Step
from erlcli.envs.check import CheckOptions
from erlcli.envs.config import ENVPOOL_IDS, EnvConfig, choose_backend
from erlcli.envs.finding import Finding
from erlcli.envs.play import Env, Played, reset, step
from erlcli.envs.single import close_all, make_env
from erlcli.envs.spaces import action_space
from erlcli.envs.vecenv import VecEnv, make_vec_env

COPIES = {"gymnasium": 1, "envpool": 16, "torch": 1024}  # whose speed is measured
STEPS = 500  # of a vector of environments
SPEED_SECONDS = 1.0


def policy_actions(space: ActionSpace, count: int, generator: torch.Generator) -> Tensor:
    """(N, *action) random actions in a policy's own units."""
    if isinstance(space, Box):
        if space.bounded:
            return torch.rand(count, space.size, generator=generator) * 2 - 1
        return torch.randn(count, space.size, generator=generator)
    if isinstance(space, Discrete):
        return torch.randint(space.n, (count,), generator=generator)
    return torch.stack([torch.randint(n, (count,), generator=generator) for n in space.nvec], dim=1)


def autoreset(options: CheckOptions, backend: str, deterministic: bool, deadline: float) -> Finding:
    """Ends of episodes in a vector of environments, against one environment that is stepped alone.

    Args:
        options: of the check.
        backend: of the vector.
        deterministic: whether the comparison can be made.
        deadline: when to stop.

    Raises:
        EnvError: the env failed.
    """
    name = "autoreset"
    config = replace(options.config, backend=backend, num_envs=3)
    vec = make_vec_env(config)
    try:
        rows: list[tuple[Tensor, Tensor, float, bool, bool, Tensor | None]] = []  # of env 0
        ends = 0
        ended = torch.zeros(3, dtype=torch.bool)
        generator = torch.Generator().manual_seed(options.seed)
        first = vec.reset(options.seed)[0].clone()
        while len(rows) < min(options.steps, STEPS) and time.monotonic() < deadline:
            action = policy_actions(vec.spec.action, 3, generator)
            now = vec.step(action)
            if fault := _wrong_end(now, ended, backend):
                return Finding(
                    name, "fail", f"{backend}, vector step {len(rows) + 1}: {fault}", "use another env.backend"
                )
            ended = now.terminated | now.truncated
            ends += int(ended.sum())
            final = (now.final_obs or {}).get(0) if now.next_obs is None else now.next_obs[0].clone()
            flags = bool(now.terminated[0]), bool(now.truncated[0])
            rows.append((action[0], now.obs[0].clone(), float(now.reward[0]), *flags, final))
        vec.verify()
    finally:
        vec.close()
    text = f"{backend}, 3 envs, {len(rows)} steps each: {ends} episodes ended"
    text += ", each with its true last observation" if ends else "; none to look at"
    if backend == "gymnasium" and deterministic:
        departs = _departure(config, options.seed, first, rows)
        if departs is not None:
            text = f"{backend}: env 0 of a vector departs from the env alone at step {departs}"
            return Finding(name, "fail", text, "keep no state in the class or module that instances share")
        text += "; equal to the env alone"
    return Finding(name, "ok", text, details={"backend": backend, "episodes": ends, "steps": 3 * len(rows)})


def _wrong_end(now: Step, ended_before: Tensor, backend: str) -> str | None:
    """What is wrong with how a step reports ends of episodes; None for nothing."""
    ended = now.terminated | now.truncated
    if bool((now.terminated & now.truncated).any()):
        return "an episode both terminated and truncated"
    if backend == "envpool":
        return None if bool((now.valid == ~ended_before).all()) else "the reset rows are not where episodes ended"
    if backend == "torch":
        moved = (now.next_obs != now.obs).reshape(len(ended), -1).any(1) if now.next_obs is not None else ended
        return None if not bool((moved & ~ended).any()) else "an episode that goes on was reset"
    indices = set(ended.nonzero().flatten().tolist())
    return None if set(now.final_obs or {}) == indices else "last observations don't match the ended episodes"


def _departure(config: EnvConfig, seed: int, first: Tensor, rows: list[Any]) -> int | None:
    """The first step at which the env alone differs from env 0 of a vector."""
    env = make_env(config, training=True)
    to_env = ActionMap(action_space(env.action_space, config.id))
    dtype = first.numpy().dtype

    def equal(obs: Any, tensor: Tensor) -> bool:  # noqa: ANN401 - an observation
        return np.array_equal(np.asarray(obs).astype(dtype), tensor.numpy())

    try:
        if not equal(reset(env, derive(seed, "env", 0)), first):
            return 0
        for t, (action, obs, reward, terminated, truncated, final) in enumerate(rows, 1):
            row = step(env, to_env(action[None]).numpy()[0], f"step {t}")
            ended = bool(row[2]), bool(row[3] and not row[2])
            alike = ended == (terminated, truncated) and np.float32(np.asarray(row[1]).item()) == np.float32(reward)
            if not alike or not equal(row[0], final if final is not None else obs):
                return t
            if any(ended) and not equal(reset(env, None), obs):
                return t
    finally:
        close_all([env], config.id)
    return None


def host_reads(options: CheckOptions) -> Finding:
    """Whether a step of the torch backend looks at values of tensors, which on a GPU makes everything wait.

    Raises:
        EnvError: the env failed.
    """
    vec = make_vec_env(replace(options.config, backend="torch", num_envs=3))
    vec.reset(options.seed)
    action = policy_actions(vec.spec.action, 3, torch.Generator().manual_seed(options.seed))
    with HostReads() as watch:
        vec.step(action)
    vec.close()
    if not watch.found:
        return Finding("tensors", "ok", "a step is tensor operations alone, and never looks at a value")
    text = f"a step looks at values of tensors: {', '.join(dict.fromkeys(map(str, watch.found)))}"
    remedy = "write it with torch.where and the like: on a GPU every look waits for all that was started before"
    if vec.spec.capturable:
        remedy += "; or set capturable = False in the class"
    return Finding("tensors", "warn", text, remedy)


def episodes(config: EnvConfig, env: Env, seen: Played) -> Iterator[Finding]:
    """How episodes end, and whether a time limit truncates.

    Args:
        config: of the environment.
        env: an instance.
        seen: what random play has shown.
    """
    limit = config.max_episode_steps or (env.spec.max_episode_steps if env.spec is not None else None)
    if seen.lengths:
        lengths, returns = span(seen.lengths), span(seen.returns)
        endings = ", ".join(f"{count} {how}" for how, count in seen.endings.items())
        text = f"{len(seen.lengths)} of random play: {endings}; {lengths} steps, return {returns}"
        yield Finding("episodes", "ok", text, details={"lengths": seen.lengths, "returns": seen.returns})
    elif limit is None:
        text = f"none ended within {seen.steps:,} random steps, and there is no time limit"
        yield Finding("episodes", "warn", text, "set env.max_episode_steps")
        return
    else:
        yield Finding("episodes", "ok", f"none ended within {seen.steps:,} random steps")
    alike = len(seen.lengths) >= 3 and len(set(seen.lengths)) == 1 and seen.lengths[0] >= 10
    if alike and seen.endings["terminated"] == len(seen.lengths):
        text = f"all {len(seen.lengths)} episodes terminated after exactly {seen.lengths[0]} steps"
        yield Finding("time limit", "warn", text, "if that is a time limit, return it as truncated, not terminated")
    elif limit is None:
        yield Finding("time limit", "ok", "none; episodes end by themselves")
    elif config.wrappers:
        yield Finding("time limit", "ok", f"{limit:,} steps, counted below the wrappers")
    else:
        yield _short_limit(config, limit)


def _short_limit(config: EnvConfig, limit: int) -> Finding:
    """Whether a limit of 3 steps truncates the third."""
    env = make_env(replace(config, max_episode_steps=3))
    env.action_space.seed(0)
    try:
        reset(env, 0)
        for t in (1, 2, 3):
            _, _, terminated, truncated = step(env, env.action_space.sample(), f"step {t}")
            if terminated:
                return Finding("time limit", "ok", f"{limit:,} steps")
            if truncated != (t == 3):
                text = f"with env.max_episode_steps = 3, step {t} has truncated = {truncated}"
                return Finding("time limit", "fail", text, "take max_episode_steps as gymnasium does: TimeLimit")
    finally:
        close_all([env], config.id)
    return Finding("time limit", "ok", f"{limit:,} steps; reaching it truncates")


def span(values: Sequence[float]) -> str:
    """The lowest and highest of `values` in words."""
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} ... {high:.4g}"


def speed(options: CheckOptions, backends: tuple[str, ...]) -> Finding:
    """Steps a second of random play, without any learning."""
    rates: dict[str, float] = {}
    parts = []
    for backend in backends:
        count = COPIES[backend]
        vec = make_vec_env(replace(options.config, backend=backend, num_envs=count))
        try:
            rates[backend] = _rate(vec, options.seed)
        finally:
            vec.close()
        where = {"gymnasium": "in one process", "envpool": f"in {count} envs on all cores"}.get(
            backend, f"in {count:,} copies on the CPU"
        )
        parts.append(f"{backend} {rates[backend]:,.0f} steps/s {where}")
    remedy = None
    if options.config.id in ENVPOOL_IDS and "envpool" not in backends:
        why = choose_backend(options.config)[1]
        if "pip install" in why:
            remedy = why
        else:
            parts.append(f"not envpool, because {why}")
    return Finding("speed", "ok", "; ".join(parts), remedy, {"steps_per_second": rates})


def _rate(vec: VecEnv, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    vec.reset(seed)
    steps, begun = 0, time.perf_counter()
    while (passed := time.perf_counter() - begun) < SPEED_SECONDS:
        steps += int(vec.step(policy_actions(vec.spec.action, vec.spec.num_envs, generator)).valid.sum())
    return steps / passed
