"""`erl export`: a run's policy as a file that runs without the tool."""

from __future__ import annotations

import contextlib
import json
import keyword
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from erlcli.cli.output import count, print_json
from erlcli.cli.policies import HELP, find_policies, parse_ensemble, which
from erlcli.runs.text import plural, score

if TYPE_CHECKING:
    from erlcli.export.exporter import Exported
    from erlcli.export.greedy import Port


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
        str | None,
        typer.Option(
            help="best, last, a number of steps, or the path of a checkpoint or snapshot.", show_default="best"
        ),
    ] = None,
    ensemble: Annotated[str | None, typer.Option(help=HELP)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Write a policy, or several as one, to a file that needs nothing of erl.

    Raw observations go in, as float32 where they are no bytes, and the env's own
    actions come out: normaliser, scaling and clipping are inside. The file is
    loaded again and compared with the policy before it is kept.
    """
    together = parse_ensemble(ensemble)
    named = find_policies(runs, which(runs, checkpoint, together), together)

    from erlcli.export.exporter import export as write
    from erlcli.export.formats import destination

    folder = Path() if named.several else named.layout.root / "export"
    stem = "policy" if named.ensemble is None else "ensemble"
    chosen, path = destination(folder / stem, form, out)
    with _sigterm_raises():
        exported = write(named.layout, named.load(), chosen, path)
    if json_output:
        print_json(exported.to_json())
    else:
        print("\n".join(report(exported)))


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM leave as Ctrl+C does, so that nothing half made stays behind."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


NOTES = {
    "action_mask": ", true for legal choices",
    "state": ", zeros where an episode begins",
    "next_state": ", the state of the next step",
}
FLATTENING = "         flattening: gymnasium.spaces.flatten, choices as one-hot vectors"
PARTS = "         parts by their names, those that are no images flattened:"


def report(exported: Exported) -> list[str]:
    """What a person wants to know: which file, how exact, how to use it."""
    facts, parity, form, spec = exported.loaded.facts, exported.parity, exported.form, exported.loaded.spec
    origin = "" if spec.obs.parts else f", {_origin(exported)}"
    source = [f"checkpoint {facts['checkpoint']}"]
    if "members" in facts:
        source = [f"{facts['ensemble']} of {plural(len(facts['members']), 'policy', 'policies')}"]
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
        f"input    {exported.inputs[0].name}: {exported.inputs[0]}{origin}",
        *(f"         {port.name}: {port}{NOTES.get(port.name, '')}" for port in exported.inputs[1:]),
        *([PARTS, "         gymnasium.spaces.flatten, choices as one-hot vectors"] if spec.obs.parts else []),
        *([FLATTENING] if spec.flattened else []),
        f"output   {exported.outputs[0].name}: {exported.outputs[0]}, as the env takes it",
        *(f"         {port.name}: {port}{NOTES.get(port.name, '')}" for port in exported.outputs[1:]),
        "use it",
        *(f"  {line}" for line in usage(exported)),
    ]


def _origin(exported: Exported) -> str:
    """What an observation has gone through before it is the input."""
    env = exported.loaded.recipe.env
    done = [f"its {plural(len(env.wrappers), 'wrapper')}"] if env.wrappers else []
    done += ["Atari preprocessing"] if env.atari is not None else []
    done += ["flattening"] if exported.loaded.spec.flattened else []
    done += [f"stacking {env.frame_stack}"] if env.frame_stack > 1 else []
    cast = ", cast to float32" if exported.inputs[0].dtype == "float32" else ""  # most envs of MuJoCo give float64
    return (f"after {', '.join(done)}" if done else "as the env gives it") + cast


# By the dtype that the file takes: an array of whatever dtype the env has.
_AS_NUMPY = {"float32": '{}.astype("float32")', "bool": '{}.astype("bool")', "uint8": "{}"}
_AS_TENSOR = {
    "float32": "torch.from_numpy({}).float()",
    "bool": "torch.from_numpy({}).bool()",
    "uint8": "torch.from_numpy({})",
}


def usage(exported: Exported) -> list[str]:
    """Lines of Python that turn a batch of observations, a numpy array `obs`, into actions.

    Whatever else there is, parts of observations, masks and states, is an array of the name that `inputs` and `outputs`
    have for it, as far as it is one of Python's. Where observations are flattened, `obs` is a sequence of the env's own
    and `env` is the env.
    """
    files = [str(path) for path in exported.files]
    takes, gives = exported.inputs, [port.name for port in exported.outputs]
    flat = _flattening(exported)
    if exported.form.name == "onnx":
        given = _by_name(takes, _AS_NUMPY)
        if len(gives) == 1:
            run = f'action = policy.run(["action"], {{{given}}})[0]'
        else:
            run = f"{', '.join(gives)} = policy.run({json.dumps(gives)}, {{{given}}})"
        return ["import onnxruntime", f"policy = onnxruntime.InferenceSession({files[0]!r})", *flat, run]
    if exported.form.name == "torch":
        parts = len(exported.loaded.spec.obs.parts)
        obs = f"{{{_by_name(takes[:parts], _AS_TENSOR)}}}" if parts else _given(takes[0], _AS_TENSOR)
        given = ", ".join([obs, *(f"{port.name}={_given(port, _AS_TENSOR)}" for port in takes[parts or 1 :])])
        result = f"policy({given})"
        run = f"action = {result}.numpy()" if len(gives) == 1 else f"{', '.join(gives)} = (x.numpy() for x in {result})"
        return ["import torch", f"policy = torch.export.load({files[0]!r}).module()", *flat, run]
    return [
        "import json, safetensors.numpy",
        f"tensors = safetensors.numpy.load_file({files[0]!r})",
        f"program = json.load(open({files[1]!r}))['program']",
    ]


def _flattening(exported: Exported) -> list[str]:
    """Lines that flatten the env's own observations; none where more is done to them, before or after."""
    spec, imports = exported.loaded.spec, ["import numpy", "from gymnasium.spaces import flatten"]
    if exported.loaded.recipe.env.frame_stack > 1:
        return []
    if spec.flattened and not spec.mask:
        return [*imports, "obs = numpy.array([flatten(env.observation_space, x) for x in obs])"]
    lines = []
    for part, port in zip(spec.obs.parts, exported.inputs, strict=False):
        # Images stay what they are; parts that lie deeper, or in a tuple, take more than a line.
        if part.space.dtype != "uint8" and "." not in part.name and not part.name.isdigit():
            space, name = f"env.observation_space[{json.dumps(part.name)}]", _variable(port)
            lines.append(f"{name} = numpy.array([flatten({space}, x) for x in {name}])")
    return [*imports, *lines] if lines else []


def _by_name(ports: Sequence[Port], values: dict[str, str]) -> str:
    """The entries of a dict of arrays: `"image": image`, each of them as `values` says of its dtype."""
    return ", ".join(f'"{port.name}": {_given(port, values)}' for port in ports)


def _given(port: Port, values: dict[str, str]) -> str:
    """The array that Python has for an input, as `values` says of its dtype."""
    return values[port.dtype].format(_variable(port))


def _variable(port: Port) -> str:
    name = re.sub(r"[^0-9a-zA-Z_]", "_", port.name)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"obs_{name}"
