"""`erl tournament`: a population that trains, competes and evolves on all slots there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.cli.output import count, fail, print_json, seconds, shorten
from erlcli.errors import DamagedError, RecipeError
from erlcli.runs.jsonl import Row
from erlcli.runs.text import plural, quoted, score

if TYPE_CHECKING:
    import subprocess

    from erlcli.engine.supervisor import Outcome
    from erlcli.runs.layout import RunLayout
    from erlcli.runs.lock import RunLock
    from erlcli.tournament.backends.settings import RaySettings

BACKENDS = ("local", "ray")
JOURNAL = "journal.jsonl"
ROLE = "orchestrator"


def tournament(
    recipe: Annotated[
        str | None,
        typer.Argument(help="Path or shipped name of a tournament recipe; default: tournament_lunarlander."),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, max=4096, help="CPU slots; default: one a core.")] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs, such as 0-7 or 0,2; default: all.")] = None,
    per_gpu: Annotated[int | None, typer.Option(min=1, max=64, help="Members that share a GPU.")] = None,
    backend: Annotated[str, typer.Option(help="local, or ray: slots are anywhere on a cluster.")] = "local",
    address: Annotated[str | None, typer.Option(help="HOST:PORT of the Ray cluster; default: auto.")] = None,
    cpus: Annotated[int | None, typer.Option(min=1, max=1024, help="Cores of each Ray slot; default: 1.")] = None,
    members: Annotated[int | None, typer.Option(min=1, help="Same as --set tournament.members=N.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key with a TOML value: tournament.mode=pbt. Repeatable."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same as --set train.seed=N.")] = None,
    name: Annotated[str | None, typer.Option(help="Name; default: the recipe's, numbered if taken.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Its directory; default: runs/NAME.")] = None,
    no_tui: Annotated[bool, typer.Option("--no-tui", help="Plain lines even on a terminal.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background and return at once.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON summary at the end.")] = False,
) -> None:
    """Train a population of agents that competes and evolves.

    Members are ordinary runs under members/; the best is champion/, a run
    itself. Ctrl+C once saves checkpoints and leaves; erl resume goes on.
    """
    from erlcli.recipe.tournament import DEFAULT
    from erlcli.tournament import slots as places

    settings = _cluster(backend, address, cpus, gpus, per_gpu)
    if settings is None:
        names = places.choose(slots, gpus, per_gpu or 1, places.gpus(), len(places.cores()))
    else:
        names = places.more([], slots or 0)  # none: as many as there is room for
    overrides = list(assignments or [])
    if members is not None:
        overrides.append(f"tournament.members={members}")
    if seed is not None:
        overrides.append(f"train.seed={seed}")
    layout = create(recipe or DEFAULT, overrides, name, run_dir)
    if settings is not None:
        settings.save(layout)
    from erlcli.runs.lock import RunLock

    lock = RunLock.acquire(layout.lock)
    raise typer.Exit(drive(layout, lock, names, plain=no_tui, detach=detach, json_output=json_output))


def _cluster(
    backend: str, address: str | None, cpus: int | None, gpus: str | None, per_gpu: int | None
) -> RaySettings | None:
    """The cluster that the options mean, which answers; None for this machine.

    Raises:
        RecipeError: options that don't go together, or no such cluster.
    """
    from erlcli.tournament.backends.settings import RaySettings

    if backend not in BACKENDS:
        raise RecipeError(f"--backend {backend}: no such backend", expected=" or ".join(BACKENDS), found=backend,
                          remedy="--backend ray spreads the slots over a Ray cluster")  # fmt: skip
    if backend == "local":
        if address is None and cpus is None:
            return None
        option = "--address" if address is not None else "--cpus"
        raise RecipeError(f"{option}: for slots on a Ray cluster", expected="--backend ray", found="--backend local",
                          remedy=f"add --backend ray, or leave {option} out")  # fmt: skip
    if gpus is not None:
        raise RecipeError("--gpus: the GPUs of a cluster have no numbers", expected="--per-gpu K, and --slots N",
                          found=f"--gpus {gpus}",
                          remedy="--per-gpu 1 --slots 8 trains on 8 GPUs, wherever they are")  # fmt: skip
    settings = RaySettings(address or "auto", cpus or 1, 1 / per_gpu if per_gpu is not None else 0.0)
    settings.check()
    return settings


def create(reference: str, overrides: list[str], name: str | None, run_dir: Path | None) -> RunLayout:
    """Check the recipe and make a tournament's directory with it.

    Raises:
        RecipeError: the recipe, the name or the directory can't be used.
    """
    import dataclasses

    from erlcli.cli import background
    from erlcli.engine.plan import backend_of, resolve
    from erlcli.recipe.tournament import load_tournament
    from erlcli.tournament.births import founder
    from erlcli.tournament.ledger import Ledger
    from erlcli.tournament.members import uncompiled
    from erlcli.tournament.session import HEADER

    found = load_tournament(reference, overrides)
    founder(Ledger(), found, founding=True)  # a space that fits nothing is told now
    base = uncompiled(found.base)
    backend, why = backend_of(base)
    if found.base.env.backend == "auto" and any(key.startswith("env.") for key in found.space.all_keys()):
        backend, why = "auto", "tournament.search has keys of [env]: chosen for each member"
    found = dataclasses.replace(found, base=resolve(base, backend))
    layout = background.place(reference, name, run_dir)
    with background.making(layout):
        layout.root.mkdir(parents=True, exist_ok=True)
        if any(layout.root.iterdir()):
            raise FileExistsError
        for folder in ("control", "errors", "events", "processes", "members"):
            (layout.root / folder).mkdir()
        (layout.root / JOURNAL).touch()
        layout.recipe.write_text(HEADER + found.dump())
    print(f"env backend: {backend}, because {why}", file=sys.stderr)
    return layout


def resume(
    layout: RunLayout,
    overrides: list[str],
    address: str | None,
    slots: int | None,
    gpus: str | None,
    per_gpu: int | None,
    *,
    plain: bool,
    detach: bool,
    json_output: bool,
) -> int:
    """Go on with a tournament; the exit code.

    Args:
        layout: its directory.
        overrides: changes to its recipe.
        address: of the Ray cluster, where that is another one now.
        slots: as `tournament` takes them, where it is to have others than before.
        gpus: likewise.
        per_gpu: likewise.
        plain: lines even on a terminal.
        detach: run in the background.
        json_output: print a JSON summary at the end.

    Raises:
        OwnedError: a live process has it.
        RecipeError: the changed recipe can't be used.
    """
    import dataclasses

    from erlcli.cli.session import claim
    from erlcli.tournament import slots as places
    from erlcli.tournament.backends.settings import RaySettings
    from erlcli.tournament.words import summary

    settings = RaySettings.of(layout)
    if address is not None:
        if settings is None:
            raise RecipeError("--address: its slots are on this machine", expected="a tournament on a Ray cluster",
                              found=shorten(layout.root), remedy="leave --address out")  # fmt: skip
        settings = dataclasses.replace(settings, address=address)
    names: list[str] = []
    if settings is not None:
        if gpus is not None or per_gpu is not None:
            raise RecipeError("--gpus, --per-gpu: its slots are wherever the cluster has room",
                              expected="--slots N", found=shorten(layout.root), remedy="leave them out")  # fmt: skip
        settings.check()
        names = places.more([], slots) if slots is not None else []
    elif slots is not None or gpus is not None or per_gpu is not None:
        names = places.choose(slots, gpus, per_gpu or 1, places.gpus(), len(places.cores()))
    lock = claim(layout)
    if settings is not None:
        settings.save(layout)
    if overrides:
        _change(layout, overrides)
    before = summary(layout)["slices"]
    code = drive(layout, lock, names, plain=plain, detach=detach, json_output=json_output)
    after = summary(layout)
    if (after["state"], after["slices"]) == ("finished", before) and not (detach or json_output):
        _say_what_trains_on(layout)
    return code


def _say_what_trains_on(layout: RunLayout) -> None:
    """After a resume that found nothing to do."""
    from erlcli.recipe.tournament import load_tournament
    from erlcli.runs.jsonl import read
    from erlcli.tournament.ledger import fold
    from erlcli.tournament.limits import raised

    more = raised(fold(read(layout.root / JOURNAL)), load_tournament(layout.recipe))
    if more:
        print(f"  train on   erl resume {quoted(layout.root)} {' '.join(f'--set {item}' for item in more)}")


def _change(layout: RunLayout, overrides: list[str]) -> None:
    """Change the recipe of a tournament, and those of the members that are in the race.

    Raises:
        RecipeError: the changed recipe can't be used.
    """
    from erlcli.recipe.load import check_change
    from erlcli.recipe.tournament import load_tournament
    from erlcli.runs.jsonl import read, write_text
    from erlcli.tournament.ledger import fold
    from erlcli.tournament.members import MemberStore
    from erlcli.tournament.session import HEADER

    before, after = load_tournament(layout.recipe), load_tournament(layout.recipe, overrides)
    for key in ("mode", "pods_per_member", "search"):
        if getattr(before.section, key) != getattr(after.section, key):
            raise RecipeError(
                f"--set tournament.{key}: can't change within a tournament",
                expected=f"{getattr(before.section, key)!r:.60}, which its members are made by",
                found=f"{getattr(after.section, key)!r:.60}",
                remedy=f"erl tournament {quoted(layout.recipe)} --set ... starts a new one",
            )
    check_change(before.base, after.base, f"erl tournament {quoted(layout.recipe)}")
    store = MemberStore(layout.root, after)
    for entry in fold(read(layout.root / JOURNAL)).alive.values():
        store.renew(entry.member)
    write_text(layout.recipe, HEADER + after.dump(), sync=True)


def drive(layout: RunLayout, lock: RunLock, names: list[str], *, plain: bool, detach: bool, json_output: bool) -> int:
    """Run a tournament to its end, showing what happens; the exit code."""
    from erlcli.cli import dashboard

    if detach:
        _start(layout, lock, names, wait=True)
        if json_output:
            print_json({"run": str(layout.root), "state": "running"})
        else:
            print("\n".join(detached_lines(layout)))
        return 0
    if dashboard.is_possible() and not plain and not json_output:
        return _with_dashboard(layout, lock, names)
    from erlcli.tournament.session import conduct

    lines = _Lines(layout, quiet=json_output)
    outcome = conduct(layout, lock, names, lines.tick)
    lines.tick()
    lock.release()
    return _conclude(layout, outcome, json_output=json_output)


class _Lines:
    """Prints what the journal says."""

    def __init__(self, layout: RunLayout, *, quiet: bool) -> None:
        from erlcli.runs.jsonl import Tail

        self._quiet, self._layout = quiet, layout
        self._tail = Tail(layout.root / JOURNAL)
        self._tail.read()  # what an earlier attempt did is no news

    def tick(self) -> None:
        """Print what is new."""
        from erlcli.tournament.words import describe

        rows = self._tail.read() if not self._quiet else []
        try:
            for row in rows:
                if (text := describe(row)) is not None:
                    print(text + self._advice(row), flush=True)
        except BrokenPipeError:  # whoever read our lines has left; training goes on
            import os

            self._quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _advice(self, row: Row) -> str:
        """What to do about a row that nothing follows from by itself."""
        if row["event"] == "slots" and not row["slots"]:
            return f"; erl scale {quoted(self._layout.root)} --slots N"
        return ""


def _with_dashboard(layout: RunLayout, lock: RunLock, names: list[str]) -> int:
    """Run it in a session of its own, with the dashboard beside it, until one of them ends; the exit code."""
    from erlcli.cli import background
    from erlcli.engine.supervisor import outcome_of

    process = _start(layout, lock, names, wait=False)
    exit_code = background.beside_dashboard(layout, process, detached_lines(layout))
    if exit_code is None:
        return 0
    return _conclude(layout, outcome_of(layout, exit_code, ROLE), json_output=False)


def _start(layout: RunLayout, lock: RunLock, names: list[str], *, wait: bool) -> subprocess.Popen[bytes]:
    from erlcli.cli import background

    return background.start(layout, lock, "erlcli.tournament.session", ROLE, names, wait=wait)


def detached_lines(layout: RunLayout) -> list[str]:
    """What to do with a tournament that goes on in the background."""
    root = quoted(layout.root)
    return [
        f"in the background: {shorten(layout.root)}",
        f"  look    erl watch {root}",
        f"  slots   erl scale {root} --slots N",
        f"  stop    erl stop {root}",
    ]


def _conclude(layout: RunLayout, outcome: Outcome, *, json_output: bool) -> int:
    from erlcli.tournament.words import summary

    if outcome.error is not None:
        fail(outcome.error)
    if not layout.root.exists():
        return outcome.exit_code
    row = summary(layout) | {"state": outcome.state, "exit_code": outcome.exit_code}
    if json_output:
        print_json(row)
    else:
        print("\n".join(closing_lines(layout, row)), flush=True)
    return outcome.exit_code


def closing_lines(layout: RunLayout, row: Row) -> list[str]:
    """Where everything is, and which command comes next."""
    root = quoted(layout.root)
    done = (
        f"{plural(row['members'], 'member')}, {plural(row['slices'] or 0, 'slice')}, {count(row['steps'] or 0)} steps"
    )
    lines = [f"{row['state']}: {done} in {seconds(row['seconds'] or 0.0)}"]
    if row["champion"] is not None:
        target = row["target_return"]
        reached = "reached" if row["target_reached"] else "not reached"
        goal = f" (target {target:g} {reached})" if target is not None else ""
        lines.append(f"  champion {row['champion']}, mean return {score(row['score'])}{goal}")
        lines.append(f"  score   erl eval {root} --episodes 100")
        lines.append(f"  ship    erl export {root}")
    if row["state"] != "finished" and row["exit_code"] != DamagedError.exit_code:  # whose remedy comes first
        lines.append(f"  go on   erl resume {root}")
    return lines
