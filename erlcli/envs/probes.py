"""The checks of `erl envs check`, one function each, in the order in which they are worth reading.

A probe is given the `Subject` and yields findings. What an env raises is turned into a finding here; what it does to
its process (hanging, leaving, crashing) is noticed by the other side, `check`.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from erlcli.core.types import ActionSpace, Box, Discrete
from erlcli.envs import inside
from erlcli.envs.check import CheckOptions
from erlcli.envs.config import choose_backend
from erlcli.envs.finding import Finding
from erlcli.envs.parts import left_out
from erlcli.envs.play import Env, Fault, Issue, Played, difference, issues, play, raised, reset, same, trace
from erlcli.envs.single import as_box, close_all, make_env, make_own_env
from erlcli.envs.spaces import action_space, describe, obs_box
from erlcli.envs.torch_single import SingleTorchEnv
from erlcli.envs.vecenv import make_vec_env
from erlcli.errors import EnvError, ErlError, RecipeError

WORKERS = "train with engine.workers"
LARGE = 50.0  # observations beyond this learn badly where they aren't normalised


@dataclass
class Subject:
    """The environment under test, and what earlier probes have learnt about it.

    Attributes:
        options: of the check.
        own: the environment with its wrappers and its own observation space; None where only envpool has it.
        backends: to look at.
        played: by the probe `play`.
        deterministic: by the probe `seeding`.
    """

    options: CheckOptions
    own: Env | None = None
    backends: tuple[str, ...] = ("gymnasium",)
    played: Played | None = None
    deterministic: bool = False

    @property
    def env(self) -> Env:
        """`own`, for probes that run only where there is one."""
        if self.own is None:
            raise RuntimeError("a probe of gymnasium's env ran without one")
        return self.own

    def until(self, share: float) -> float:
        """A deadline after a share of the whole time."""
        return time.monotonic() + share * self.options.timeout_seconds


Probe = Callable[[Subject], Iterator[Finding]]


def run(options: CheckOptions, on_start: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """All findings about an environment; in this process, so that a hang of it is ours.

    Args:
        options: what to check.
        on_start: called with the name of each probe before it runs.
    """
    subject = Subject(options)
    for name, probe in PROBES.items():
        if options.only and name not in options.only and name != "make":
            continue
        if subject.own is None and name not in ("make", "autoreset", "speed"):
            continue
        on_start(name)
        try:
            failed = False
            for finding in probe(subject):
                yield finding
                failed = failed or finding.status == "fail"
        except Fault as fault:
            yield fault.finding
            failed = True
        except EnvError as error:
            yield _of_error(name, error)
            failed = True
        if failed and name in ("make", "spaces", "reset", "play"):
            return  # the rest would say the same again
    if subject.own is not None:
        try:
            subject.own.close()
        except Exception as error:
            yield replace(raised("close", "close()", error), status="warn")


def _of_error(name: str, error: ErlError) -> Finding:
    details = error.details | {"error": error.to_json()}
    remedy = error.remedy
    if isinstance(error, RecipeError):
        details["no_such_env"] = True
    elif error.details.get("traceback"):
        remedy = "mend it; --json has the whole traceback"
    return Finding(name, "fail", error.message, remedy, details)


def _make(subject: Subject) -> Iterator[Finding]:
    config = subject.options.config
    only_in_pool = config.backend == "envpool" and ":" not in config.id and config.id not in gymnasium.registry
    backend = choose_backend(config)[0]
    if backend == "envpool":
        subject.backends = ("envpool",) if only_in_pool else ("gymnasium", "envpool")
    if backend == "torch":
        subject.backends = ("torch",)
    before = time.monotonic()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            for other in {"envpool", "torch"} & set(subject.backends):
                make_vec_env(replace(config, backend=other, num_envs=1)).close()
            if not only_in_pool:
                subject.own = make_own_env(config)
        except ErlError as error:
            yield _of_error("make", error)
            return
    seconds = time.monotonic() - before
    kind = "envpool only" if subject.own is None else _class_name(subject.own)
    yield Finding("make", "ok", f"{kind}, in {seconds:.1f} s", details={"seconds": seconds})
    for text in dict.fromkeys(str(w.message) for w in told if "WARN: " in str(w.message)):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text).removeprefix("WARN: ")
        if "precision lowered" in plain:
            continue  # a matter of how bounds were written
        yield Finding("make", "warn", plain, "follow that advice of gymnasium's")


def _class_name(env: Env) -> str:
    inner = env.unwrapped
    return type(inner.torch_env if isinstance(inner, SingleTorchEnv) else inner).__name__


def _spaces(subject: Subject) -> Iterator[Finding]:
    config, env = subject.options.config, subject.env
    try:
        seen = obs_box(as_box(env, config).observation_space, config.id)
        action = action_space(env.action_space, config.id)
    except RecipeError as error:
        text = f"{error.message}: {error.found}"
        yield Finding("spaces", "fail", text, error.remedy, {"expected": error.expected})
        return
    sees = ", ".join(f"{part.name} {part.space.dtype} {part.space.shape}" for part in seen.parts)
    text = f"{describe(env.observation_space)}; an algorithm sees {sees or f'{seen.dtype} {seen.shape}'}"
    yield Finding("observations", "ok", text, details={"shape": list(seen.shape), "dtype": seen.dtype})
    if dropped := left_out(env.observation_space):
        text = f"{', '.join(dropped)}: left out, since it is text, which no network here reads"
        yield Finding("observations", "ok", text, details={"left_out": dropped})
    yield _actions(action, env.action_space)


def _actions(action: ActionSpace, space: spaces.Space[Any]) -> Finding:
    text = f"{describe(space)}; an algorithm chooses "
    if isinstance(action, Discrete):
        return Finding("actions", "ok", text + f"1 of {action.n}")
    if not isinstance(action, Box):
        return Finding("actions", "ok", text + f"{len(action.nvec)} times, 1 of {sorted(set(action.nvec))}")
    text += "1 number" if action.size == 1 else f"{action.size} numbers"
    if not action.bounded:
        text += ", without finite bounds to scale to"
        return Finding("actions", "warn", text, "give all actions finite bounds: SAC, TD3 and DDPG need them")
    if max(map(abs, (*action.low, *action.high))) > 1e6:
        text += "; bounds so wide make every action huge"
        return Finding("actions", "warn", text, "declare the bounds that the env means")
    return Finding("actions", "ok", text + " in [-1, 1], scaled to these bounds")


def _reset(subject: Subject) -> Iterator[Finding]:
    obs = reset(subject.env, subject.options.seed)
    yield _judge("reset", list(issues(subject.env.observation_space, obs)), "returns an observation of its space")


def _judge(name: str, found: list[Issue], otherwise: str) -> Finding:
    """The worst issue as a finding."""
    worst = next((i for i in found if i.status == "fail"), found[0] if found else None)
    return Finding(name, worst.status, worst.text, worst.remedy) if worst else Finding(name, "ok", otherwise)


def _play(subject: Subject) -> Iterator[Finding]:
    options = subject.options
    seen = play(subject.env, options.seed, options.episodes, options.steps, subject.until(0.25))
    subject.played = seen
    text = f"{seen.steps:,} random steps, each a whole transition"
    if seen.steps < options.steps and len(seen.lengths) < options.episodes:
        faster = "make dynamics() of fewer or cheaper operations" if "torch" in subject.backends else WORKERS
        remedy = f"{faster}, and check with a higher --timeout"
        yield Finding("step", "warn", f"only {text}: the env is slow", remedy)
    else:
        yield Finding("step", "ok", text)
    yield _rewards(seen)
    yield _flags(seen)
    yield _values(seen, subject.env.observation_space)
    if seen.reused:
        yield Finding("buffer", "ok", "observations are changed after they were returned; erl copies them in time")
    else:
        yield Finding("buffer", "ok", "each observation is memory of its own")


def _rewards(seen: Played) -> Finding:
    low, high = seen.rewards
    kinds = ", ".join(sorted(seen.reward_types))
    text = f"{kinds}, {inside.span((low, high))} a step"
    if not set(seen.reward_types) <= {"float", "float64", "float32"}:
        text += "; erl makes floats of them"
    details = {"low": low, "high": high, "types": dict(seen.reward_types)}
    if low == high == 0:
        return Finding("reward", "warn", f"always 0 in {seen.steps:,} random steps", "reward steps on the way", details)
    if max(abs(low), abs(high)) > 1000:
        return Finding("reward", "warn", f"{text}: large", "set normalize.reward = true", details)
    return Finding("reward", "ok", text, details=details)


def _flags(seen: Played) -> Finding:
    odd = sorted(set(seen.flag_types) - {"bool", "bool_"})
    if odd:
        text = f"terminated and truncated are of type {', '.join(odd)}; erl makes booleans of them"
        return Finding("flags", "warn", text, "return bool(...)")
    return Finding("flags", "ok", "terminated and truncated are booleans")


def _values(seen: Played, space: spaces.Space[Any]) -> Finding:
    low, high = seen.values
    if seen.issue is not None:
        return Finding("values", seen.issue.status, seen.issue.text, seen.issue.remedy)
    text = f"observations within {inside.span((low, high))}, none of them NaN or infinite"
    details = {"low": low, "high": high}
    if max(abs(low), abs(high)) > LARGE and space.dtype != np.uint8 and not isinstance(space, spaces.Discrete):
        return Finding("values", "warn", f"{text}: large", "set normalize.obs = true", details)
    return Finding("values", "ok", text, details=details)


def _seeding(subject: Subject) -> Iterator[Finding]:
    """Same seed, same trajectory, also in another instance; other seeds, other trajectories."""
    options, env, deadline = subject.options, subject.env, subject.until(0.2)
    seed = options.seed
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(100)]
    first = trace(env, seed, actions, deadline)
    again = trace(env, seed, actions, deadline)
    others = [trace(env, seed + k, actions, deadline) for k in (1, 2)]
    other_env = make_own_env(options.config)
    elsewhere = trace(other_env, seed, actions, deadline)
    close_all([other_env], options.config.id)
    mend = "start reset with super().reset(seed=seed) and draw from self.np_random only"
    again_at, elsewhere_at = difference(first, again), difference(first, elsewhere)
    if again_at == 0 or elsewhere_at == 0:
        yield Finding("seeding", "warn", "the same seed gives different first observations", mend)
    elif all(difference(first, other) is None for other in others):
        text = "3 seeds give the same trajectory: no randomness, or none that seeds reach"
        yield Finding("seeding", "warn", text, f"where anything in it is random, {mend}")
    else:
        start_alike = all(same(first[0][0], other[0][0]) for other in others)
        text = "the same seed plays alike, other seeds differ"
        yield Finding("seeding", "ok", text + (", though all start alike" if start_alike else ""))
    subject.deterministic = again_at is None and elsewhere_at is None
    if subject.deterministic:
        yield Finding("determinism", "ok", f"same seed and actions, same {len(first) - 1} steps, to the last bit")
    elif again_at is None:
        text = f"another instance with the same seed and actions departs at step {elsewhere_at}"
        yield Finding("determinism", "warn", text, "keep no state in the class or module; until then runs can't repeat")
    else:
        text = f"the same seed and actions depart at step {again_at}"
        mend = "let reset set back everything, and draw from self.np_random only; until then runs can't repeat"
        yield Finding("determinism", "warn", text, mend)


def _autoreset(subject: Subject) -> Iterator[Finding]:
    for backend in subject.backends:
        yield inside.autoreset(subject.options, backend, subject.deterministic, subject.until(0.1))
    if "torch" in subject.backends:
        yield inside.host_reads(subject.options)


def _episodes(subject: Subject) -> Iterator[Finding]:
    if subject.played is not None:
        yield from inside.episodes(subject.options.config, subject.env, subject.played)


def _speed(subject: Subject) -> Iterator[Finding]:
    yield inside.speed(subject.options, subject.backends)


def _render(subject: Subject) -> Iterator[Finding]:
    """Last of all, since graphics libraries take whole processes with them."""
    modes = list(subject.env.metadata.get("render_modes") or [])
    needed_for = "videos and erl eval --render need it"
    if "rgb_array" not in modes:
        text = f"no rgb_array among its render modes ({', '.join(map(str, modes)) or 'it has none'})"
        yield Finding("render", "warn", text, f"offer it in metadata['render_modes']: {needed_for}")
        return
    try:
        env = make_env(subject.options.config, "rgb_array")
        env.reset(seed=subject.options.seed)
        frame = env.render()
        close_all([env], subject.options.config.id)
    except Exception as error:
        found = raised("render", "rendering", error)
        hint = "without a display MuJoCo needs libEGL (apt install libegl1), or MUJOCO_GL=osmesa with OSMesa"
        yield replace(found, status="warn", remedy=f"training goes on without; {hint}")
        return
    array = np.asarray(frame)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        text = f"render() returned {type(frame).__name__} of {array.dtype} {array.shape}"
        yield Finding("render", "warn", text, f"return uint8 of shape (height, width, 3): {needed_for}")
        return
    text = f"rgb_array frames of {array.shape[1]} x {array.shape[0]}"
    yield Finding("render", "ok", text, details={"shape": list(array.shape)})


PROBES: dict[str, Probe] = {
    "make": _make,
    "spaces": _spaces,
    "reset": _reset,
    "play": _play,
    "seeding": _seeding,
    "autoreset": _autoreset,
    "episodes": _episodes,
    "speed": _speed,
    "render": _render,
}
