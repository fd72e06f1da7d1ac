"""The `erl` command: wires one file a verb, and turns errors into messages and exit codes."""

from __future__ import annotations

import io
import sys
import traceback

import typer

import erlcli
from erlcli.cli import (
    bench,
    compare,
    doctor,
    envs,
    eval,
    export,
    fuse,
    plot,
    ps,
    recipes,
    resume,
    scale,
    stop,
    tournament,
    train,
    watch,
)
from erlcli.cli.output import fail
from erlcli.errors import FREE_SPACE, ErlError, is_full

app = typer.Typer(
    name="erl",
    help="Train, evaluate, resume and ship deep-RL agents from a terminal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("eval")(eval.evaluate)
app.command("resume")(resume.resume)
app.command("tournament")(tournament.tournament)
app.command("scale")(scale.scale)
app.command("watch")(watch.watch)
app.command("export")(export.export)
app.command("fuse")(fuse.fuse)
app.command("plot")(plot.plot)
app.command("compare")(compare.compare)
app.command("ps")(ps.ps)
app.command("stop")(stop.stop)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.add_typer(recipes.recipes_app, name="recipes")
app.add_typer(envs.envs_app, name="envs")


def _version(value: bool) -> None:
    if value:
        print(f"erl {erlcli.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and leave."
    ),
) -> None:
    """Train, evaluate, resume and ship deep-RL agents from a terminal."""


def main() -> None:
    """Entry point of `erl`: everything that is raised becomes a message and a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows a question mark for what it lacks
    try:
        app()
    except SystemExit:
        if type(sys.stdout).__name__ != "PacifyFlushWrapper":
            raise
        sys.exit(0)  # the reader of our output has left, e.g. `erl ps | head`; Typer takes that for an error
    except ErlError as error:
        fail(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        where = error.filename or "input or output"
        fail(ErlError(f"{where}: {error.strerror or error}", remedy=FREE_SPACE if is_full(error) else None))
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        print("error: this is a defect of erl; please report it with the lines above", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
