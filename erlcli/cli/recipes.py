"""`erl recipes`: what is shipped, what a recipe may hold, a new one, and whether one is right."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from erlcli.cli.output import count, fail, print_json, quoted
from erlcli.errors import RecipeError, unwritable

recipes_app = typer.Typer(
    help="List, show, make and check recipes.", context_settings={"help_option_names": ["-h", "--help"]}
)
WIDTH = 80


@recipes_app.callback(invoke_without_command=True)
def recipes(
    context: typer.Context,
    json_output: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the shipped recipes, or work with one: show, schema, new, check."""
    if context.invoked_subcommand is not None:
        return
    from erlcli.recipe.shipped import Summary, summaries

    rows = summaries()
    if json_output:
        print_json([row.to_json() for row in rows])
        return

    def cells(row: Summary) -> list[str]:
        target = "-" if row.target_return is None else f"{row.target_return:g}"
        return [row.name, row.env, row.algorithm, target, count(row.total_steps)]

    head = ["NAME", "TASK", "ALGORITHM", "TARGET", "STEPS"]
    print("\n".join(table(head, [cells(row) for row in rows if row.mode is None])))
    if any(row.mode is not None for row in rows):
        print("\n".join(["", *table(["TOURNAMENT", *head[1:]], [cells(row) for row in rows if row.mode is not None])]))
    if sys.stdout.isatty():
        print("\nerl train NAME or erl tournament NAME trains one; erl recipes show NAME prints it;")
        print("erl recipes new FILE starts one")


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Rows of (name, task, algorithm, target, steps) as lines of at most 80 columns; only the task is cut."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    widths[1] = max(8, min(widths[1], WIDTH - sum(widths) + widths[1] - 2 * (len(head) - 1)))
    lines = []
    for row in [head, *rows]:
        task = row[1] if len(row[1]) <= widths[1] else row[1][: widths[1] - 1] + "…"
        cells = [row[0].ljust(widths[0]), task.ljust(widths[1]), row[2].ljust(widths[2])]
        cells += [row[3].rjust(widths[3]), row[4].rjust(widths[4])]
        lines.append("  ".join(cells).rstrip())
    return lines


@recipes_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A shipped recipe, or the path of one.")],
    resolved: Annotated[bool, typer.Option("--resolved", help="Print every key, defaults included.")] = False,
) -> None:
    """Print a recipe as it is written, or with --resolved as it is understood."""
    from erlcli.recipe.shipped import find

    if resolved:
        from erlcli.recipe.load import dump, load
        from erlcli.recipe.tables import read_toml
        from erlcli.recipe.tournament import SECTION, load_tournament

        text = load_tournament(name).dump() if SECTION in read_toml(find(name)) else dump(load(name))
    else:
        from erlcli.recipe.tables import read_text

        text = read_text(find(name))
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())  # a pipe gets the file's own bytes, line ends included
    sys.stdout.flush()


@recipes_app.command()
def schema(
    out: Annotated[Path | None, typer.Option("--out", help="Write it to this file instead.")] = None,
) -> None:
    """Print the JSON Schema of recipes, which lets editors complete and check them.

    Editors with TOML support (taplo, Even Better TOML) follow a first line in the recipe:

    #:schema ./recipe.schema.json

    where that file was written by erl recipes schema --out recipe.schema.json
    """
    from erlcli.recipe.json_schema import recipe_schema

    text = json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"
    if out is None:
        sys.stdout.write(text)
        return
    _write(out, text, replace=True)
    print(f"wrote {out}; editors use it in recipes beside it that begin with the line")
    print(f"#:schema ./{out.name}")


@recipes_app.command()
def new(
    file: Annotated[Path, typer.Argument(help="Where to write it.")],
    env: Annotated[
        str | None, typer.Option(help="A gymnasium id, package.module:Class or ./file.py:Class.", show_default=False)
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Algorithm, e.g. ppo.", show_default=False)] = None,
    source: Annotated[
        str | None, typer.Option("--from", help="Take the values of this recipe over.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a recipe to start from: every key with its meaning, range and default.

    With --from of a tournament it is a tournament's.
    """
    from erlcli.recipe.shipped import summaries
    from erlcli.recipe.starter import Wish, starter
    from erlcli.recipe.tournament import load_any

    _write(file, starter(Wish(env, algorithm, source), file.absolute().parent), replace=force)
    command = "train" if load_any(file)[1] is None else "tournament"
    print(f"wrote {file}; next: erl {command} {quoted(file)}")
    runs = [row for row in summaries() if row.mode is None]
    tuned = [row.name for row in runs if row.env == env and algorithm in (None, row.algorithm)]
    if source is None and tuned:
        text = f"shipped for {env}: {', '.join(tuned)}; --from takes one's values over"
        print(textwrap.fill(text, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _write(path: Path, text: str, *, replace: bool) -> None:
    """Write a file as a whole or not at all."""
    from erlcli.runs.jsonl import write_text

    fresh = not os.path.lexists(path)
    try:
        path.open("a" if replace else "x").close()  # takes the name, in a folder that has to be there
        if path.is_file():
            write_text(path.resolve(), text)
        else:  # /dev/stdout
            path.write_text(text, encoding="utf-8")
    except FileExistsError:
        raise RecipeError(
            f"{path}: exists",
            expected="a new file",
            found="a folder" if path.is_dir() else "a file",
            remedy="another name, or --force to replace it",
        ) from None
    except OSError as error:
        if fresh:
            with contextlib.suppress(OSError):
                path.unlink()
        raise unwritable(
            path, error, expected="a file in a folder that exists and is writable", remedy="another path"
        ) from None


@recipes_app.command()
def check(
    files: Annotated[list[str], typer.Argument(help="Paths of recipes, or names of shipped ones.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
) -> None:
    """Say for each recipe whether erl train or erl tournament would take it.

    Leaves with 2 if one is bad.
    """
    from erlcli.recipe.tournament import load_any

    verdicts = []
    for file in files:
        try:
            recipe, mode = load_any(file)
        except RecipeError as error:
            verdicts.append({"file": file, "ok": False, "error": error.to_json()})
            if not json_output:
                fail(error)
            continue
        verdicts.append({"file": file, "ok": True, "error": None})
        if not json_output:
            steps = count(recipe.train.total_steps)
            what = f"{recipe.env.id}, {recipe.algorithm.name}, {steps} steps" + (f", {mode}" if mode else "")
            print(f"{file}: ok ({what})", flush=True)
    if json_output:
        print_json(verdicts)
    if not all(verdict["ok"] for verdict in verdicts):
        raise typer.Exit(2)
