"""`erl envs`: which environments there are, and whether one keeps its contract."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from erlcli.cli.findings import FindingPrinter, tally
from erlcli.cli.output import print_json
from erlcli.errors import ErlError, RecipeError

if TYPE_CHECKING:
    from erlcli.envs.catalogue import Entry
    from erlcli.envs.config import EnvConfig

OWN = "Your own gymnasium.Env or TorchEnv too: package.module:Class or ./file.py:Class."


class _ListsByDefault(TyperGroup):
    """`erl envs [SEARCH]` means `erl envs list [SEARCH]`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - a click context
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


envs_app = typer.Typer(
    name="envs",
    cls=_ListsByDefault,
    help="List environments (erl envs [SEARCH]), or check one.",
    pretty_exceptions_enable=False,
)


@envs_app.command("list")
def list_envs(
    search: Annotated[str, typer.Argument(help="Part of an id, in any case.", show_default=False)] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Older versions too, and what needs other packages.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the environments that are installed; what erl envs alone does."""
    from erlcli.envs.catalogue import catalogue

    entries = catalogue(search)
    shown = [e for e in entries if everything or (e.newest and e.needs is None)]
    if not shown:
        raise _nothing(search, len(entries))
    if json_output:
        print_json([entry.to_json() for entry in shown])
        return
    for line in _table(shown):
        print(line)
    print()
    for line in _footer(shown, len(entries) - len(shown)):
        print(line)


def _nothing(search: str, hidden: int) -> RecipeError:
    import difflib

    from erlcli.envs.catalogue import catalogue
    from erlcli.envs.families import FAMILIES

    missing = [family for family in FAMILIES if not family.installed]
    remedy = "erl envs lists them all"
    if hidden:
        remedy = f"erl envs {shlex.quote(search)} --all shows {hidden} older ones, or ones that need other packages"
    elif close := difflib.get_close_matches(search, [e.id for e in catalogue()], n=3, cutoff=0.4):
        remedy = f"did you mean {', '.join(close)}?"
    elif missing:
        packages = "; ".join(f"{family.title}: {family.remedy}" for family in missing)
        remedy = f"erl envs lists them all; more are in {packages}"
    return RecipeError(f"{search}: no such environment", expected="part of a registered id", remedy=remedy)


def _table(entries: list[Entry]) -> list[str]:
    width = max(28, *(len(entry.id) for entry in entries)) + 2
    lines = [f"{'':<{width}}{'time limit':>12}{'solved at':>12}{'envpool':>10}"]
    family = None
    for entry in entries:
        if entry.family != family:
            family = entry.family
            lines.append(family)
        limit = f"{entry.max_episode_steps:,}" if entry.max_episode_steps is not None else "-"
        solved = f"{entry.reward_threshold:,g}" if entry.reward_threshold is not None else "-"
        end = f"  needs {entry.needs}" if entry.needs is not None else ""
        envpool = "yes" if entry.envpool else ""
        lines.append(f"  {entry.id:<{width - 2}}{limit:>12}{solved:>12}{envpool:>10}{end}".rstrip())
    return lines


def _footer(shown: list[Entry], hidden: int) -> list[str]:
    import importlib.util

    from erlcli.envs.families import FAMILIES

    lines = []
    if any(entry.envpool for entry in shown):
        installed = importlib.util.find_spec("envpool") is not None
        state = "installed" if installed else "not installed: pip install 'erlcli[fast]' (Linux)"
        lines.append(f"envpool steps those several times faster; it is {state}.")
    if hidden:
        lines.append(f"{hidden} older versions, or ones that need other packages: --all.")
    lines += [f"{family.title}: {family.remedy}" for family in FAMILIES if not family.installed]
    return [*lines, OWN, "erl envs check ID looks for faults in one."]


@envs_app.command("check")
def check(
    env_id: Annotated[str, typer.Argument(metavar="ID", help="As env.id of a recipe, or a recipe (.toml).")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="An env key with a TOML value: kwargs.continuous=true. Repeatable."),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="auto, gymnasium, envpool or torch.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes of random play, at most.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps of random play, at most.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 4, help="Of the env and its actions.")] = 0,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds for the whole check.")] = 60.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON report.")] = False,
) -> None:
    """Look for faults of an environment: contract, numbers, seeding, autoreset, speed, rendering.

    ID is a registered id, package.module:Class or ./file.py:Class. The check
    runs in a process of its own, so a hang or a crash is a finding too.

    Exit code 0: it can be trained on, 3: it fails, 2: there is no such env.
    """
    from erlcli.envs.check import CheckOptions, check_env

    overrides = [a if a.startswith("env.") else f"env.{a}" for a in assignments or []]
    if backend is not None:
        overrides.append(f'env.backend="{backend}"')
    config = _config(env_id, overrides)
    printer = FindingPrinter(quiet=json_output)
    missing: list[ErlError] = []

    def show(finding: Any) -> None:  # noqa: ANN401 - Finding, whose module is imported above
        if finding.details.get("no_such_env"):
            missing.append(ErlError.from_json(finding.details["error"]))
        else:
            printer(finding)

    try:
        report = check_env(CheckOptions(config, episodes, steps, seed, timeout), show, printer.looking_at)
    finally:
        printer.done()
    if json_output:
        print_json(report.to_json())
    elif missing:
        raise missing[0]
    else:
        verdict = "can be trained on" if report.exit_code == 0 else "has faults"
        print(f"{config.id} {verdict}: {tally(report.findings)}")
    raise typer.Exit(report.exit_code)


def _config(env_id: str, overrides: list[str]) -> EnvConfig:
    """What a recipe's [env] with these keys means, checked as any recipe is.

    Raises:
        RecipeError: a key or value that [env] can't have.
    """
    from erlcli.envs.config import env_config
    from erlcli.recipe.load import load, merge, validate

    if env_id.endswith(".toml"):
        section = load(env_id, overrides).env
    else:
        frame = {"env": {"id": env_id}, "algorithm": {"name": "ppo"}, "train": {"total_steps": 2**40}}
        section = validate(merge(frame, overrides), "--set").env
    return env_config(section, 1)
