"""`erl export`: a run's policy as a file that runs without the tool."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.cli.output import count, print_json
from erlcli.cli.policies import HELP, find_policies, parse_ensemble
from erlcli.runs.text import score

if TYPE_CHECKING:
    from erlcli.export.exporter import Exported


def export(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, tournaments or checkpoints.", show_default=False)
    ],
    form: Annotated[
        str | None,
        typer.Option("--format", help="onnx, torch or safetensors; default: by the ending of --out, or onnx."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; default: RUN/export/policy.*, ./ensemble.* of several runs.")
    ] = None,
    checkpoint: Annotated[
        str, typer.Option(help="best, last, a number of steps, or the path of a checkpoint or snapshot.")
    ] = "best",
    ensemble: Annotated[str | None, typer.Option(help=HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Write a policy, or several as one, to a file that needs nothing of erl.

    Raw observations go in, the env's own actions come out: normaliser, scaling
    and clipping are inside. The file is loaded again and compared with the
    policy before it is kept.
    """
    named = find_policies(runs, checkpoint, parse_ensemble(ensemble))

    from erlcli.export.exporter import export as write
    from erlcli.export.formats import destination

    folder = Path() if named.several else named.layout.root / "export"
    stem = "policy" if named.ensemble is None else "ensemble"
    chosen, path = destination(folder / stem, form, out)
    exported = write(named.layout, named.load(), chosen, path)
    if json_output:
        print_json(exported.to_json())
    else:
        print("\n".join(report(exported)))


NOTES = {
    "action_mask": ", true for legal choices",
    "state": ", zeros where an episode begins",
    "next_state": ", the state of the next step",
}


def report(exported: Exported) -> list[str]:
    """What a person wants to know: which file, how exact, how to use it."""
    facts, parity, form = exported.loaded.facts, exported.parity, exported.form
    source = [f"checkpoint {facts['checkpoint']}"]
    if "members" in facts:
        source = [f"{facts['ensemble']} of {len(facts['members'])} policies"]
    if facts["steps"] is not None:
        source.append(f"{count(facts['steps'])} steps")
    if "return_mean" in facts:
        source.append(f"return {score(float(facts['return_mean']))}")
    error = f"largest error {parity.max_error:.2g}" + (" of the scores" if parity.compared == "scores" else "")
    if parity.differing_actions is not None:
        error += f", {parity.differing_actions} actions differ" + (" (ties)" if parity.differing_actions else "")
    return [
        f"exported {exported.files[0]}",
        *(f"         {path} says what to compute" for path in exported.files[1:]),
        f"format   {form.name}, {exported.size_bytes / 1000:.1f} kB",
        f"from     {', '.join(source)}",
        f"parity   {error}",
        f"         over {parity.observations:,} observations, run by {form.runtime}",
        f"input    {exported.inputs[0].name}: {exported.inputs[0]}, {_origin(exported)}",
        *(f"         {port.name}: {port}{NOTES.get(port.name, '')}" for port in exported.inputs[1:]),
        *(["         parts by their names: choices as one-hot vectors"] if exported.loaded.spec.obs.parts else []),
        f"output   {exported.outputs[0].name}: {exported.outputs[0]}, as the env takes it",
        *(f"         {port.name}: {port}{NOTES.get(port.name, '')}" for port in exported.outputs[1:]),
        "use it",
        *(f"  {line}" for line in usage(exported)),
    ]


def _origin(exported: Exported) -> str:
    """What an observation has gone through before it is the input."""
    env = exported.loaded.recipe.env
    done = [f"its {len(env.wrappers)} wrappers"] if env.wrappers else []
    done += ["Atari preprocessing"] if env.atari is not None else []
    done += [f"stacking {env.frame_stack}"] if env.frame_stack > 1 else []
    return f"after {', '.join(done)}" if done else "as the env gives it"


def usage(exported: Exported) -> list[str]:
    """Three lines of Python that turn a batch of observations, a numpy array `obs`, into actions.

    Whatever else there is, parts of observations, masks and states, is an array of the name that `inputs` and `outputs`
    have for it, as far as it is one of Python's.
    """
    files = [str(path) for path in exported.files]
    takes, gives = ([port.name for port in ports] for ports in (exported.inputs, exported.outputs))
    if exported.form.name == "onnx":
        given = _by_name(takes)
        if len(gives) == 1:
            run = f'action = policy.run(["action"], {{{given}}})[0]'
        else:
            run = f"{', '.join(gives)} = policy.run({json.dumps(gives)}, {{{given}}})"
        return ["import onnxruntime", f"policy = onnxruntime.InferenceSession({files[0]!r})", run]
    if exported.form.name == "torch":
        parts = len(exported.loaded.spec.obs.parts)
        obs = f"{{{_by_name(takes[:parts], 'torch.from_numpy({})')}}}" if parts else "torch.from_numpy(obs)"
        given = ", ".join([obs, *(f"{name}=torch.from_numpy({name})" for name in takes[parts or 1 :])])
        result = f"policy({given})"
        run = f"action = {result}.numpy()" if len(gives) == 1 else f"{', '.join(gives)} = (x.numpy() for x in {result})"
        return ["import torch", f"policy = torch.export.load({files[0]!r}).module()", run]
    return [
        "import json, safetensors.numpy",
        f"tensors = safetensors.numpy.load_file({files[0]!r})",
        f"program = json.load(open({files[1]!r}))['program']",
    ]


def _by_name(names: Sequence[str], value: str = "{}") -> str:
    """The entries of a dict of arrays: `"image": image`, each of them as `value` says."""
    return ", ".join(f'"{name}": {value.format(re.sub(r"[^0-9a-zA-Z_]", "_", name))}' for name in names)
