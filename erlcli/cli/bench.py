"""`erl bench`: how fast a recipe trains here, and what holds it back."""

from __future__ import annotations

from typing import Annotated

import typer

WIDTH, INDENT = 80, " " * 12  # of the report


def bench(
    recipe: Annotated[str, typer.Argument(help="Path of a recipe, or the name of a shipped one.")],
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key with a TOML value. Repeatable.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each of the two measurements.")] = 10.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Measure steps per second of a recipe, and of its environments alone.

    Nothing is kept. Close other programs first: all cores are used.
    """
    import sys
    import textwrap
    from dataclasses import asdict

    from erlcli.cli.output import print_json
    from erlcli.engine.bench import bench as measure
    from erlcli.engine.plan import backend_of, resolve
    from erlcli.errors import EnvError
    from erlcli.recipe.load import load
    from erlcli.runs.text import plural, task

    loaded = load(recipe, list(assignments or []))
    backend, why = backend_of(loaded)
    resolved = resolve(loaded, backend)

    def tell(what: str) -> None:
        print(f"measuring {what} ...", file=sys.stderr, flush=True)

    try:
        result = measure(resolved, seconds, tell)
    except EnvError as error:
        if trace := error.details.get("traceback"):
            print(trace, file=sys.stderr)
        raise
    facts = {
        "recipe": recipe,
        "env": resolved.env.id,
        "backend": backend,
        "num_envs": resolved.env.num_envs,
        "workers": resolved.engine.workers,
        **asdict(result),
        "share_of_limit": result.share_of_limit,
    }
    if json_output:
        print_json(facts)
        return
    print(f"{task(resolved.env.id)}, {plural(resolved.env.num_envs, 'env')} on {backend}")
    print(textwrap.fill(why, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_long_words=False))
    print(f"training    {result.steps_per_second:>12,.0f} steps/s")
    print(f"envs alone  {result.env_limit_steps_per_second:>12,.0f} steps/s")
    print(f"share of the limit {result.share_of_limit:>5.0%}")
    shares = {"env": result.share_env, "act": result.share_act, "update": result.share_update}
    print("time in     " + "   ".join(f"{name} {share:.0%}" for name, share in shares.items()), end="")
    print(f"   wait {result.share_wait:.0%}" if resolved.engine.workers else "")
