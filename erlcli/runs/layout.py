"""Names of everything inside a run directory. The layout is a public interface: dashboards and scripts read it."""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from erlcli.errors import RecipeError


@dataclass(frozen=True)
class RunLayout:
    """Paths of one run.

    Attributes:
        root: the run directory.
    """

    root: Path

    @property
    def recipe(self) -> Path:
        """The resolved recipe, which reruns the run."""
        return self.root / "recipe.toml"

    @property
    def spec(self) -> Path:
        """Observation and action space, JSON."""
        return self.root / "spec.json"

    @property
    def status(self) -> Path:
        """State of the whole run, replaced atomically by the supervisor."""
        return self.root / "status.json"

    @property
    def lock(self) -> Path:
        """Held by the owner's processes for as long as one of them lives."""
        return self.root / "lock"

    @property
    def metrics(self) -> Path:
        """Training rows, JSON lines, by the learner."""
        return self.root / "metrics.jsonl"

    @property
    def evals(self) -> Path:
        """Evaluation rows, JSON lines, by the evaluator."""
        return self.root / "evals.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Restart points, one folder each, and `best`."""
        return self.root / "checkpoints"

    @property
    def snapshots(self) -> Path:
        """Policies on their way to the evaluator."""
        return self.root / "snapshots"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard events."""
        return self.root / "tb"

    @property
    def videos(self) -> Path:
        """Recorded episodes."""
        return self.root / "videos"

    @property
    def plots(self) -> Path:
        """Pictures, `learning_curve.png` first of all."""
        return self.root / "plots"

    @property
    def control(self) -> Path:
        """Requests to the engine, a file each."""
        return self.root / "control"

    @property
    def stop_request(self) -> Path:
        """Asks the learner to checkpoint and leave."""
        return self.control / "stop"

    @property
    def requests(self) -> Path:
        """Requests to the learner; see `runs.control`."""
        return self.control / "requests"

    @property
    def agent_request(self) -> Path:
        """Says that somebody wants to see the agent act."""
        return self.control / "agent"

    @property
    def agent(self) -> Path:
        """Episodes that the evaluator filmed for those who watch: `latest.json` names the newest."""
        return self.root / "agent"

    def events(self, process: str) -> Path:
        """What `process` has to tell, JSON lines."""
        return self.root / "events" / f"{process}.jsonl"

    def error(self, process: str) -> Path:
        """Why `process` failed, with its traceback."""
        return self.root / "errors" / f"{process}.json"

    def output(self, process: str) -> Path:
        """What `process` printed, and what libraries inside it printed."""
        return self.root / "errors" / f"{process}.log"

    def process(self, process: str) -> Path:
        """Heartbeat of `process`, replaced once a second."""
        return self.root / "processes" / f"{process}.json"

    def position(self, process: str) -> Path:
        """Where the environments of `process` are, in binary; see `envs.position`."""
        return self.root / "processes" / f"{process}.position"

    @property
    def asked_for(self) -> Path:
        """The recipe as the command under torchrun gave it; that command, given again, goes on with the run."""
        return self.root / "processes" / "torchrun.toml"

    @property
    def rendezvous(self) -> Path:
        """Where several learners on this machine find each other; of no use to anyone else."""
        return self.root / "processes" / "learners.rendezvous"

    @property
    def tournament(self) -> RunLayout | None:
        """That of the tournament whose member this run is; None for a run of its own."""
        folder = self.root.absolute().parent
        is_member = folder.name == "members" and (folder.parent / "journal.jsonl").exists()
        return RunLayout(folder.parent) if is_member else None

    def absolute(self) -> RunLayout:
        """The same run by its absolute path, which means the same to every process."""
        return RunLayout(self.root.absolute())

    def create(self) -> None:
        """Make the directory and its folders.

        Raises:
            FileExistsError: the directory is there and holds anything.
            OSError: it can't be written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        if any(self.root.iterdir()):
            raise FileExistsError(str(self.root))
        self.ensure()

    def clear(self) -> None:
        """Remove requests to an earlier owner, and what processes left that were killed while they wrote."""
        for leftover in (*self.control.iterdir(), *self.checkpoints.glob(".*")):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:  # hidden files of other systems' file managers, too
                leftover.unlink(missing_ok=True)

    def ensure(self) -> None:
        """Make whatever folder is missing."""
        for folder in (self.checkpoints, self.snapshots, self.plots, self.control):
            folder.mkdir(exist_ok=True)
        for name in ("events", "errors", "processes"):
            (self.root / name).mkdir(exist_ok=True)


def open_run(path: str | Path) -> RunLayout:
    """The run at `path`.

    Raises:
        RecipeError: it is no run directory.
    """
    root = Path(path)
    layout = RunLayout(root)
    if layout.recipe.is_file():
        return layout
    if not root.exists():
        found, near = "nothing there", root.parent
    else:
        found, near = ("a file" if root.is_file() else "a folder without recipe.toml"), root
    runs = list_runs(near) or list_runs(Path("runs"))
    raise RecipeError(
        f"{path}: not a run directory",
        expected="a directory that erl train made",
        found=found,
        remedy="runs here: " + ", ".join(str(r.root) for r in runs[-5:]) if runs else "erl train RECIPE makes one",
    )


def list_runs(folder: Path) -> list[RunLayout]:
    """The runs directly inside `folder`, oldest first."""
    if not folder.is_dir():
        return []
    times: dict[Path, float] = {}
    for path in folder.glob("*/recipe.toml"):
        with contextlib.suppress(FileNotFoundError):  # removed a moment ago
            times[path.parent] = path.stat().st_mtime
    return [RunLayout(root) for root in sorted(times, key=lambda root: (times[root], root))]


def next_free(folder: Path, name: str) -> Path:
    """`folder/name`, or with -2, -3 ... behind it where that is taken."""
    candidate = folder / name
    number = 2
    while candidate.exists():
        candidate = folder / f"{name}-{number}"
        number += 1
    return candidate


def check_name(name: str) -> str:
    """A run's name is one plain path component.

    Raises:
        RecipeError: it isn't.
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        return name
    raise RecipeError(
        f"--name {name}: not a name",
        expected="letters, digits, dots, dashes and underscores",
        found=name,
        remedy="use --run-dir for a path",
    )
