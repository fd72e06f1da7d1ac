"""What `train` and `resume` have in common: a run directory, a supervisor, and something to look at meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil

from erlcli.cli import background, dashboard
from erlcli.cli.live import PlainView, Watcher
from erlcli.cli.output import count, fail, print_json, quoted, seconds, shorten
from erlcli.engine import torchrun
from erlcli.engine.member import Member
from erlcli.engine.plan import backend_of, resolve
from erlcli.engine.supervisor import INTERRUPTED, Outcome, Supervisor, outcome_of
from erlcli.envs.offscreen import has_display
from erlcli.errors import RecipeError
from erlcli.recipe.load import check_change, dump, load
from erlcli.recipe.schema import DEVICE
from erlcli.recipe.words import found
from erlcli.runs.jsonl import write_text
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import RunLock, is_owned, read_owner
from erlcli.runs.text import score
from erlcli.runs.view import FOLLOWED_ROWS, RunView

HEADER = "# Resolved: `erl train` of this file repeats the run.\n"
PATIENCE_SECONDS = 12.0  # a learner whose supervisor was killed saves a checkpoint before it leaves


def on_device(device: str) -> str:
    """What --device sets, as --set would.

    Raises:
        RecipeError: there is no such device.
    """
    if re.fullmatch(DEVICE, device):
        return f'train.device="{device}"'
    raise RecipeError(
        "--device: no such device",
        expected="auto, cpu, cuda or cuda:N",
        found=found(device),
        remedy="leave it out: auto takes a GPU where there is one",
    )


def create(reference: str, overrides: list[str], name: str | None, run_dir: Path | None) -> RunLayout:
    """Check the recipe and make a run directory with it.

    Raises:
        RecipeError: the recipe, the name or the directory can't be used.
    """
    recipe = load(reference, overrides)
    backend, why = backend_of(recipe)
    recipe = resolve(recipe, backend)
    layout = background.place(reference, name, run_dir)
    with background.making(layout):
        layout.create()
        write_text(layout.recipe, HEADER + dump(recipe))
    print(f"env backend: {backend}, because {why}", file=sys.stderr)
    return layout


def claim(layout: RunLayout, overrides: list[str] | None = None) -> RunLock:
    """Take the lock of a run, then change its recipe where that is asked for.

    Raises:
        OwnedError: a live process has it, and does not leave within seconds.
        RecipeError, EnvError: see `change`.
    """
    patience = 0.0
    if is_owned(layout.lock) and not _owner_lives(layout):
        print("waiting for the run's processes to leave", file=sys.stderr)
        patience = PATIENCE_SECONDS
    lock = RunLock.acquire(layout.lock, patience)
    if overrides:
        change(layout, overrides)
    return lock


def change(layout: RunLayout, overrides: list[str]) -> None:
    """Change the recipe of a run that is ours; it stays as it is where its checkpoints would not fit any more.

    Raises:
        RecipeError: the changed recipe can't be used.
        EnvError: the changed env can't be made.
    """
    before, after = load(layout.recipe), load(layout.recipe, overrides)
    check_change(before, after, f"erl train {quoted(layout.recipe)}")
    after = resolve(after, backend_of(after)[0])
    if after.env != before.env:  # what it is like can only be told from one that is made
        from erlcli.engine.spaces import check_resumed
        from erlcli.envs.config import env_config
        from erlcli.envs.vecenv import make_vec_env

        made = make_vec_env(env_config(after.env, 1, 1))
        made.close()
        check_resumed(layout, after.env.id, made.spec)
    write_text(layout.recipe, HEADER + dump(after))


def _owner_lives(layout: RunLayout) -> bool:
    """Whether the supervisor itself is alive, rather than children that are about to follow it."""
    owner = read_owner(layout.lock)
    if owner.get("host") != socket.gethostname():
        return True
    return psutil.pid_exists(int(str(owner.get("pid", 0))))


def nothing_left(
    layout: RunLayout, overrides: list[str] | None = None, *, json_output: bool = False, quiet: bool = False
) -> bool:
    """Whether the run, with a recipe that is changed so, is at its end, which is then said, unless `quiet`."""
    view = RunView(layout)
    view.refresh()
    summary, recipe = view.summary(), load(layout.recipe, overrides)
    target, best = recipe.train.target_return, summary["best_return"]
    used = summary["steps"] >= recipe.train.total_steps
    if summary["state"] != "finished" or not (used or (target is not None and best is not None and best >= target)):
        return False
    if recipe.train.total_steps != summary["total_steps"] and not used:
        return False  # more of it, after a target that was reached before
    if quiet:
        return True
    if json_output:
        print_json(summary | {"exit_code": 0})
        return True
    reason = "has used its budget" if used else f"has reached its target of {target:g}"
    print(f"{shorten(layout.root)} {reason}: nothing is left to do")
    print(f"  train on   erl resume {quoted(layout.root)} --set train.total_steps={2 * recipe.train.total_steps}")
    return True


def train_together(
    member: Member, reference: str, overrides: list[str], run_dir: Path | None, *, json_output: bool
) -> int:
    """`erl train` in one of the processes of torchrun; the exit code.

    Raises:
        RecipeError: the recipe can't be used, or there is no --run-dir.
    """
    if run_dir is None:
        raise RecipeError(
            "--run-dir: missing",
            expected="a directory that all processes of torchrun see under the same path",
            found="nothing",
            remedy="torchrun ... -m erlcli train RECIPE --run-dir DIR",
        )
    layout = RunLayout(run_dir.absolute())
    if member.rank:
        return torchrun.follow(layout, member)
    learners = f"engine.learners={member.world_size}"
    wanted = dump(load(reference, [*overrides, "engine.learners=1"]))
    if torchrun.asked_for(layout) == wanted:  # the same command again: of a restart, or of a job that was evicted
        return _lead(member, layout, claim(layout, [learners]), json_output=json_output)
    create(reference, [*overrides, learners], None, run_dir)
    torchrun.remember(layout, wanted)
    return _lead(member, layout, claim(layout), json_output=json_output)


def resume_together(member: Member, layout: RunLayout, overrides: list[str], *, json_output: bool) -> int:
    """`erl resume` in one of the processes of torchrun; the exit code.

    Raises:
        RecipeError: the changed recipe can't be used.
    """
    overrides = [*overrides, f"engine.learners={member.world_size}"]
    if nothing_left(layout, overrides, json_output=json_output, quiet=member.rank > 0):
        return 0
    if member.rank:
        return torchrun.follow(layout, member)
    return _lead(member, layout, claim(layout, overrides), json_output=json_output)


def _lead(member: Member, layout: RunLayout, lock: RunLock, *, json_output: bool) -> int:
    """Supervise a run whose other learners torchrun has started."""
    code = _supervise(layout, lock, member, json_output=json_output)
    return 0 if code == INTERRUPTED else code  # or torchrun would start anew what a user has stopped


def drive(layout: RunLayout, lock: RunLock, *, plain: bool, detach: bool, json_output: bool) -> int:
    """Train a run directory to its end, showing what happens; the exit code.

    Args:
        layout: with a recipe.
        lock: of the directory.
        plain: lines even on a terminal.
        detach: start a supervisor in a session of its own and return.
        json_output: print a JSON summary at the end, and nothing else on stdout.
    """
    if detach:
        _start(layout, lock, wait=True)
        if json_output:
            print_json({"run": str(layout.root), "state": "running"})
        else:
            print("\n".join(detached_lines(layout)))
        return 0
    if dashboard.is_possible() and not plain and not json_output:
        return _with_dashboard(layout, lock, fresh=not any(layout.checkpoints.iterdir()))
    return _supervise(layout, lock, None, json_output=json_output)


def _supervise(layout: RunLayout, lock: RunLock, member: Member | None, *, json_output: bool) -> int:
    """Train in this process's children, with lines about it; the exit code."""
    fresh = not any(layout.checkpoints.iterdir())
    watcher = Watcher(RunView(layout, FOLLOWED_ROWS))
    supervisor = Supervisor(layout, lock, member)
    with PlainView(watcher, quiet=json_output) as view:
        outcome = supervisor.run(view.tick)
    lock.release()
    return _conclude(layout, outcome, fresh=fresh, json_output=json_output)


def _with_dashboard(layout: RunLayout, lock: RunLock, *, fresh: bool) -> int:
    """Train in a session of its own, with the dashboard beside it, until one of them ends; the exit code."""
    process = _start(layout, lock, wait=False)
    exit_code = background.beside_dashboard(layout, process, detached_lines(layout))
    if exit_code is None:
        return 0
    return _conclude(layout, outcome_of(layout, exit_code), fresh=fresh, json_output=False)


def _conclude(layout: RunLayout, outcome: Outcome, *, fresh: bool, json_output: bool) -> int:
    error = outcome.error
    if isinstance(error, RecipeError) and fresh and not any(layout.checkpoints.iterdir()):
        shutil.rmtree(layout.root)  # found out only once the env was made: nothing was trained
    if error is not None:
        fail(error)
    if not layout.root.exists():
        return outcome.exit_code
    view = RunView(layout)
    view.refresh()
    try:
        if json_output:
            print_json(view.summary() | {"state": outcome.state, "exit_code": outcome.exit_code})
        else:
            print("\n".join(closing_lines(view, outcome.state)), flush=True)
    except BrokenPipeError:  # nobody reads; how the run ended is still told by the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return outcome.exit_code


def closing_lines(view: RunView, state: str) -> list[str]:
    """Where everything is, and which command comes next; `state` is how the run ended."""
    summary, root = view.summary(), quoted(view.layout.root)
    steps = f"{count(summary['steps'])} steps in {seconds(summary['seconds'])}"
    best = summary["best_return"]
    reached = f", best return {score(best)}" if best is not None else ""
    target = summary["target_return"]
    if state == "finished" and target is not None:
        reached += f" (target {target:g} {'reached' if summary['target_reached'] else 'not reached'})"
    lines = [f"{state}: {steps}{reached}"]
    if state != "finished":
        lines.append(f"  go on   erl resume {root}")
    if best is not None:
        onnx = "onnx" if find_spec("onnxruntime") and find_spec("onnxscript") else "torch"
        lines += [
            f"  score   erl eval {root} --episodes 100",
            f"  play    erl eval {root} {'--render' if has_display() else '--terminal'}",
            f"  ship    erl export {root} --format {onnx}",
            f"  curve   {shorten(view.layout.plots)}/learning_curve.png",
        ]
    return lines


def _start(layout: RunLayout, lock: RunLock, *, wait: bool) -> subprocess.Popen[bytes]:
    return background.start(layout, lock, "erlcli.engine.supervisor", "supervisor", wait=wait)


def detached_lines(layout: RunLayout) -> list[str]:
    """What to do with a run that trains in the background."""
    root = quoted(layout.root)
    return [
        f"training in the background: {shorten(layout.root)}",
        f"  look    erl watch {root}",
        f"  stop    erl stop {root}",
    ]
