"""One gymnasium environment from a config: by registered id, by module, or from a file beside the recipe."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TimeLimit

from erlcli.envs import families, novel, torch_find
from erlcli.envs.atari import AtariGame
from erlcli.envs.config import AtariConfig, EnvConfig
from erlcli.envs.masks import MaskTakenOut
from erlcli.envs.parts import PackObservation, wants_packing
from erlcli.envs.spaces import check_declared, obs_box
from erlcli.envs.torch_env import TorchEnv
from erlcli.envs.torch_single import SingleTorchEnv
from erlcli.errors import EnvError, RecipeError

UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")
_LOADING = threading.RLock()  # re-entrant, since a file may make an environment from another one


def make_env(config: EnvConfig, render_mode: str | None = None, *, training: bool = False) -> gymnasium.Env[Any, Any]:
    """The environment with its wrappers, time limit, flattening and frame stack.

    Args:
        config: of the environment.
        render_mode: how it draws, if at all.
        training: with what belongs to training alone, such as the clipping of an Atari game's rewards.

    Raises:
        RecipeError: there is no such env or wrapper, an argument does not fit, or observations can't be a box.
        EnvError: the env fails while it is made.
    """
    return as_box(make_own_env(config, render_mode, training=training), config)


def make_own_env(
    config: EnvConfig, render_mode: str | None = None, *, training: bool = False
) -> gymnasium.Env[Any, Any]:
    """The environment with its wrappers and time limit; its observations are still its own.

    Raises:
        RecipeError: there is no such env or wrapper, or an argument does not fit.
        EnvError: the env fails while it is made.
    """
    env = _bare(config, render_mode) if config.atari is None else _game(config, config.atari, render_mode, training)
    for reference, kwargs in config.wrappers:
        wrapper = _attribute(reference, "env.wrappers")
        env = _call(partial(wrapper, env, **kwargs), f"env.wrappers {reference}")
    check_declared(env, f"env.id {config.id}")
    return env


def named(env_id: str) -> Any:  # noqa: ANN401 - whatever the user names
    """What `package.module:name` or `file.py:name` refers to; None where gymnasium itself may know `module:Id`.

    Raises:
        RecipeError: there is no such file, module or name.
        EnvError: importing it fails.
    """
    return _attribute(env_id, "env.id")


def as_box(env: gymnasium.Env[Any, Any], config: EnvConfig) -> gymnasium.Env[Any, Any]:
    """The environment with the observations that algorithms see: one box, stacked where the config says so.

    Dict and Tuple observations are packed where they hold an image (see `parts`), else flattened.

    Raises:
        RecipeError: they can't be turned into a box.
    """
    if config.action_masks == "auto" and MaskTakenOut.fits(env.observation_space, env.action_space):
        env = MaskTakenOut(env)
    if wants_packing(env.observation_space):
        try:
            return PackObservation(env, config.frame_stack)
        except NotImplementedError:  # a part of no fixed size
            obs_box(env.observation_space, config.id)  # raises
    if not isinstance(env.observation_space, spaces.Box):
        try:
            flat = isinstance(spaces.flatten_space(env.observation_space), spaces.Box)
        except NotImplementedError:  # a space class of the user's own
            flat = False
        if not flat:
            obs_box(env.observation_space, config.id)  # raises
        env = _Flattened(env)
    if config.frame_stack > 1:
        env = FrameStackObservation(env, config.frame_stack)
    return env


def close_all(envs: Iterable[gymnasium.Env[Any, Any]], env_id: str) -> None:
    """Close each of them, whatever another one raises.

    What was done in them is safe by then, so nothing is lost where that fails; it is printed once, for all of them.
    """
    faults: dict[str, None] = {}
    for env in envs:
        try:
            env.close()
        except (Exception, SystemExit) as error:  # a viewer that was never opened, or a script's own way to end
            faults[f"{type(error).__name__}: {error}"] = None
    if faults:
        print(f"env.id {env_id}: close() raised {'; '.join(faults)}", file=sys.stderr)


def is_flattened(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether `as_box` has flattened the observations; a recipe's own wrappers don't count."""
    return isinstance(env, _Flattened) or (isinstance(env, FrameStackObservation) and isinstance(env.env, _Flattened))


class _Flattened(FlattenObservation[Any, Any, Any]):
    """Gymnasium's wrapper, told apart from one that a recipe names."""


def _bare(config: EnvConfig, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    novel.register()
    torch_find.register()
    kwargs = dict(config.kwargs)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    what = f"env.id {config.id}"
    if ":" in config.id:
        target = _attribute(config.id, "env.id")
        if target is not None:
            limit = config.max_episode_steps
            if isinstance(target, type) and issubclass(target, TorchEnv):
                env = _call(partial(SingleTorchEnv, target, **kwargs), what)
                limit = limit or target.max_episode_steps
            else:
                env = _call(partial(target, **kwargs), what)
            return TimeLimit(env, limit) if limit is not None else env
    families.register(config.id)
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    return _call(partial(gymnasium.make, config.id, disable_env_checker=True, **kwargs), what)


def _game(config: EnvConfig, atari: AtariConfig, render_mode: str | None, training: bool) -> gymnasium.Env[Any, Any]:
    if not config.id.startswith("ALE/"):
        raise RecipeError(
            f"env.atari: {config.id} is no Atari game",
            expected='an env.id that begins with "ALE/"',
            found=config.id,
            remedy="leave [env.atari] out",
        )
    kwargs = {**config.kwargs, "frameskip": 1, "repeat_action_probability": atari.repeat_action_probability}
    bare = _bare(replace(config, kwargs=kwargs, max_episode_steps=None), render_mode)
    limit = config.limit
    if limit is None:
        raise TypeError("an Atari game has a limit always")
    return AtariGame(bare, atari, limit, training)


def _call(build: partial[Any], what: str) -> gymnasium.Env[Any, Any]:
    """`build()` with its failures in the user's words."""
    try:
        env = build()
    except gymnasium.error.DependencyNotInstalled as error:
        raise RecipeError(f"{what}: a package is missing", remedy=str(error)) from None
    except gymnasium.error.Error as error:
        unknown = (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv)
        if not isinstance(error, unknown) and "Malformed environment ID" not in str(error):
            raise _failed(what, error) from error  # an env of the user's own may raise gymnasium's errors
        raise _unknown_id(what, error) from None
    except ModuleNotFoundError as error:
        raise RecipeError(f"{what}: {error}", remedy=f"pip install the package that has {error.name}") from None
    except ImportError as error:  # how gymnasium says that an env has moved to another package
        raise RecipeError(f"{what}: can't be imported", found=" ".join(str(error).split())) from None
    except TypeError as error:
        unexpected = UNEXPECTED.search(str(error))
        if unexpected is None or unexpected[1] not in build.keywords:  # a slip in the env's own code
            raise _failed(what, error) from error
        key = "env.kwargs" if what.startswith("env.id") else "kwargs of that wrapper"
        raise RecipeError(
            f"{what}: {str(error).partition(' was raised from')[0]}",
            expected=f"{key} that it takes",
            remedy=f"correct {key}",
        ) from None
    except (RecipeError, EnvError):
        raise
    except Exception as error:
        raise _failed(what, error) from error
    if not isinstance(env, gymnasium.Env):
        raise RecipeError(f"{what}: not an environment", expected="a gymnasium.Env", found=type(env).__name__)
    return env


def _failed(what: str, error: BaseException) -> EnvError:
    return EnvError(
        f"{what}: failed while it was made: {type(error).__name__}: {error}",
        details={"traceback": "".join(traceback.format_exception(error))},
    )


def _unknown_id(what: str, error: Exception) -> RecipeError:
    name = what.removeprefix("env.id ")
    close = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.5)
    remedy = f"did you mean {', '.join(close)}?" if close else "erl envs lists what is installed"
    if isinstance(error, gymnasium.error.NamespaceNotFound):
        remedy = f"install the package that has it, and name it too: package:{name}"
    return RecipeError(
        f"{what}: no such environment",
        expected="a registered id, package.module:Class, or ./file.py:Class",
        found=name,
        remedy=remedy,
    )


def _attribute(reference: str, key: str) -> Any:  # noqa: ANN401 - whatever the user names
    """What `module:name` or `file.py:name` refers to; None where gymnasium itself may know `module:Id`.

    Raises:
        RecipeError: there is no such file, module or name.
        EnvError: importing it fails.
    """
    source, colon, name = reference.partition(":") if not reference.startswith("/") else _split_path(reference)
    if not colon or not name:
        raise RecipeError(
            f"{key} {reference}: names no class",
            expected="package.module:Class or ./file.py:Class",
            found=reference,
        )
    module = _from_file(Path(source), key) if source.endswith(".py") else _from_module(source, key)
    found = getattr(module, name, None)
    if found is None:
        if key == "env.id" and name in {i.split(":")[-1] for i in gymnasium.registry}:
            return None
        public = [n for n in vars(module) if not n.startswith("_")]
        close = difflib.get_close_matches(name, public, n=1, cutoff=0.4)
        raise RecipeError(
            f"{key} {reference}: {source} has no {name}",
            expected="the name of a class or function in it",
            found=name,
            remedy=f"did you mean {close[0]}?" if close else None,
        )
    if not callable(found):
        raise RecipeError(
            f"{key} {reference}: nothing that makes an environment",
            expected="the name of a class or function",
            found=f"one {type(found).__name__}: {found!r:.100}",
            remedy="name its class, or a function that returns it",
        )
    return found


def _split_path(reference: str) -> tuple[str, str, str]:
    source, colon, name = reference.rpartition(":")
    return source, colon, name


def _from_module(name: str, key: str) -> Any:  # noqa: ANN401 - a module
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # console scripts, unlike `python -m`, don't see the current folder
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):  # the module itself, or a package above it
            raise RecipeError(
                f"{key} {name}: no such module",
                expected="a module that Python finds from here",
                found=f"nothing called {error.name}",
                remedy="pip install it, or run from the folder that holds it",
            ) from None
        raise RecipeError(f"{key} {name}: {error}", remedy=f"pip install {error.name}") from None
    except Exception as error:
        raise _failed(f"{key} {name}", error) from error


def _from_file(path: Path, key: str) -> Any:  # noqa: ANN401 - a module
    if not path.is_file():
        raise RecipeError(
            f"{key} {path}: no such file", remedy="paths are relative to this folder; within a recipe, to the recipe's"
        )
    path = path.resolve()
    name = f"erl_env_{hashlib.blake2b(str(path).encode(), digest_size=6).hexdigest()}"
    with _LOADING:  # another thread may be at it
        return sys.modules[name] if name in sys.modules else _executed(name, path, key)


def _executed(name: str, path: Path, key: str) -> Any:  # noqa: ANN401 - a module
    """The module `name` from its file, which nobody has imported yet."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RecipeError(f"{key} {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # the file's neighbours, as if it were run as a script
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise RecipeError(f"{key} {path}: {error}", remedy=f"pip install {error.name}") from None
        if isinstance(error, (Exception, SystemExit)):
            raise _failed(f"{key} {path}", error) from error
        raise
    return module
