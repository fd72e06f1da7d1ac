"""The members' directories: ordinary runs, made from their parents' checkpoints.

Checkpoints never change once they are there, so a child's is a hard link: made in an instant, and not hurt by whatever
becomes of the parent's. The checkpoint that a member was scored with is held beside its others while it trains on,
however few it keeps: children start from it, and the champion is made of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from pathlib import Path

from erlcli.engine.plan import backend_of, resolve
from erlcli.engine.status import status_row
from erlcli.errors import DamagedError, RecipeError
from erlcli.recipe.load import AnyRecipe, dump, load
from erlcli.recipe.tournament import TournamentRecipe, has_settings
from erlcli.runs.jsonl import Appender, Row, read_json, sync_path, write_json, write_text
from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned
from erlcli.runs.members import Member
from erlcli.tournament.ledger import Crown, Ledger
from erlcli.tournament.scores import Sample

FOLDER, CHAMPION, HELD = "members", "champion", "held"
CHAMPIONS = "champions"  # what the link `champion` points into
ASIDE = "aside"  # directories of members and champions that the journal no longer knows
MADE = ("export", "videos", "plots")  # folders of a run that hold what users had made of it
HEADER = "# A member of a tournament: `erl train` of this file trains it anew, without its parent's weights.\n"
COPIES = 3  # attempts at a checkpoint whose files go meanwhile
STEPS_DIGITS = 12  # names of checkpoints sort as text


def uncompiled(recipe: AnyRecipe) -> AnyRecipe:
    """A recipe of a tournament, which compiles only if it says so: members that differ would do it one by one."""
    if recipe.engine.compile != "auto":
        return recipe
    return recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"compile": "off"})})


class Store(ABC):
    """Where the members' files are."""

    @abstractmethod
    def path(self, member: str) -> Path:
        """Directory of a member."""

    @abstractmethod
    def create(self, member: Member, row: Row) -> None:
        """Make a member's directory, unless it is there.

        Args:
            member: spawned.
            row: by which it was.

        Raises:
            DamagedError: its parent's checkpoint is gone.
            OSError: the disk is full or read-only; nothing is left behind.
        """

    @abstractmethod
    def hold(self, member: str, steps: int) -> None:
        """Keep the checkpoint at `steps` until another one is held."""

    @abstractmethod
    def newest_steps(self, member: str, otherwise: int) -> int:
        """Steps of the newest checkpoint; `otherwise` where there is none."""

    @abstractmethod
    def scored_checkpoint(self, member: str, steps: int) -> str:
        """The checkpoint at `steps`, as `erl eval --checkpoint` takes it."""

    @abstractmethod
    def check(self, member: str, steps: int) -> None:
        """See whether children can start from the checkpoint at `steps`.

        Raises:
            DamagedError: it is damaged, or gone.
        """

    @abstractmethod
    def crown(self, crown: Crown, row: Row) -> None:
        """Make the champion's directory, unless it is there; `row` is its evaluation."""

    @abstractmethod
    def prune(self, ledger: Ledger) -> list[str]:
        """Keep to the disk budget; retired members whose checkpoints went."""


class MemberStore(Store):
    """Directories under `members/`.

    Args:
        root: the tournament's directory.
        recipe: of the tournament.
    """

    def __init__(self, root: Path, recipe: TournamentRecipe) -> None:
        self.root, self.recipe = root, recipe
        self._sizes: dict[str, int] = {}
        self._measured: dict[str, tuple[int, bool]] = {}  # steps and whether alive when that was
        (root / FOLDER).mkdir(exist_ok=True)

    def path(self, member: str) -> Path:
        """See `Store.path`."""
        return self.root / FOLDER / member

    def create(self, member: Member, row: Row) -> None:
        """See `Store.create`."""
        path = self.path(member.id)
        if self._is_made(member, row):
            return
        for left in (path, *(self.root / CHAMPIONS).glob(f"{member.id}-*")):
            if left.exists():
                set_aside(left, self.root / ASIDE)
        temporary = RunLayout(path.with_name(f".{member.id}"))
        shutil.rmtree(temporary.root, ignore_errors=True)
        try:
            temporary.create()
            recipe = self._recipe(member)
            temporary.recipe.write_text(HEADER + dump(recipe))
            steps = int(row["steps"])
            if row.get("fused"):
                from erlcli.engine.fusion import fuse

                fuse([self._checkpoint(pod) for pod in row["fused"]], temporary.checkpoints / name_of(steps), steps)
            elif member.parent is not None:
                self._copy(member.parent.id, steps, temporary.checkpoints / name_of(steps))
            spec = RunLayout(self.path(member.parent.id)).spec if member.parent is not None else None
            if spec is not None and spec.exists():  # which a member that is evaluated before it trains needs
                shutil.copyfile(spec, temporary.spec)
            status = status_row(member.id, recipe, "interrupted", attempt=0, steps=steps, seconds=0.0)
            write_json(temporary.status, status | {"pid": None, "time": 0.0})  # nobody has had it yet
            os.rename(temporary.root, path)
        finally:
            shutil.rmtree(temporary.root, ignore_errors=True)
        sync_path(path.parent)

    def _is_made(self, member: Member, row: Row) -> bool:
        """Whether a member's directory is there, and its own.

        One may be left of a journal that was cut, whose next rows give the name to somebody else. A member that has
        trained since then has made it its own.
        """
        path, born = self.path(member.id), int(row["steps"])
        if not (path / "recipe.toml").exists():
            return False
        if member.steps != born:
            return True
        if self.newest_steps(member.id, born) != born:
            return False
        try:
            found = load(path / "recipe.toml")
        except RecipeError:
            return False
        return found.train.seed == (member.seed or 0) and has_settings(found, member.parameters)

    def _copy(self, parent: str, steps: int, target: Path) -> None:
        """A parent's checkpoint, which may be pruned meanwhile: then there is the one that is held, or none."""
        for _ in range(COPIES):
            source = self._checkpoint(parent, steps)
            with contextlib.suppress(FileNotFoundError):
                self._copy_from(source, target)
                return
        raise DamagedError(
            f"{source}: went while it was copied",
            expected="a checkpoint that its children start from",
            found="files that are gone",
            remedy="leave members/ as it is while the tournament lasts",
        )

    def _copy_from(self, source: Path, target: Path) -> None:
        if self.recipe.section.copy_replay or not any(source.glob("replay-*")):
            link_folder(source, target)
            return
        from erlcli.engine.fusion import forget

        forget(source, target)

    def renew(self, member: Member) -> None:
        """Have the recipe of a member, if it has a directory, follow the tournament's, which was changed."""
        path = self.path(member.id) / "recipe.toml"
        if path.exists():
            backend = load(path).env.backend  # of its environments, which its checkpoints hold
            write_text(path, HEADER + dump(self._recipe(member, backend)), sync=True)

    def _recipe(self, member: Member, backend: str | None = None) -> AnyRecipe:
        recipe = uncompiled(self.recipe.member(member.parameters, member.seed or 0))
        return resolve(recipe, backend or backend_of(recipe)[0])  # which may depend on what was drawn

    def _checkpoint(self, member: str, steps: int | None = None) -> Path:
        """See `find_checkpoint`."""
        return find_checkpoint(self.path(member), steps)

    def hold(self, member: str, steps: int) -> None:
        """See `Store.hold`."""
        root, name = self.path(member), name_of(steps)
        held = root / HELD
        source = root / "checkpoints" / name
        if not (held / name).exists() and source.is_dir():
            held.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                link_folder(source, held / name)
        for other in held.glob("*") if (held / name).exists() else ():
            if other.name != name:
                shutil.rmtree(other)

    def newest_steps(self, member: str, otherwise: int) -> int:
        """See `Store.newest_steps`."""
        found = [path for path in _numbered(self.path(member) / "checkpoints") if (path / "manifest.json").exists()]
        return int(found[-1].name) if found else otherwise

    def scored_checkpoint(self, member: str, steps: int) -> str:
        """See `Store.scored_checkpoint`."""
        return str(self._checkpoint(member, steps))

    def check(self, member: str, steps: int) -> None:
        """See `Store.check`."""
        from erlcli.engine.checkpoint import verify

        verify(self._checkpoint(member, steps))

    def crown(self, crown: Crown, row: Row) -> None:
        """See `Store.crown`. `champion` is a link that is moved in one step; what it points to never changes."""
        link, folder = self.root / CHAMPION, self.root / CHAMPIONS
        path = folder / f"{crown.member}-{name_of(crown.steps)}"
        if not (path / "recipe.toml").exists():
            temporary = RunLayout(folder / f".{path.name}")
            for unfinished in (temporary.root, path):
                shutil.rmtree(unfinished, ignore_errors=True)
            temporary.create()
            self._fill(temporary, crown, row)
            os.rename(temporary.root, path)
        sync_path(folder)
        target = f"{CHAMPIONS}/{path.name}"
        if not link.is_symlink() or os.readlink(link) != target:
            fresh = self.root / f".{CHAMPION}.new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(target)
            os.replace(fresh, link)
        sync_path(self.root)
        for old in folder.iterdir():
            if old != path and not _is_used(RunLayout(old)):
                shutil.rmtree(old)

    def _fill(self, layout: RunLayout, crown: Crown, row: Row) -> None:
        source = RunLayout(self.path(crown.member))
        for file in (source.recipe, source.spec, source.metrics, source.evals):
            if file.exists():
                shutil.copyfile(file, layout.root / file.name)
        checkpoint = self._checkpoint(crown.member, crown.steps)
        name = name_of(crown.steps)
        link_folder(checkpoint, layout.checkpoints / name)
        link_folder(checkpoint, layout.checkpoints / f"best-{name}")
        (layout.checkpoints / "best").symlink_to(f"best-{name}")
        state = json.loads((checkpoint / "state.json").read_text())
        fresh = row.get("fresh")
        if fresh is not None:  # of the episodes that `crown.mean` is of
            row = row | fresh | {"ci": list(Sample(fresh["mean"], fresh["std"], fresh["episodes"]).ci)}
        low, high = row["ci"]
        rows = Appender(layout.evals)
        rows.append({"attempt": int(state["attempt"]), "steps": crown.steps, "version": int(state["version"]),
                     "kind": "full", "episodes": row["episodes"], "return_mean": crown.mean, "return_std": row["std"],
                     "return_ci": [low, high], "time/seconds": float(state["seconds"]),
                     "time/wall": float(row["time"])})  # fmt: skip
        rows.close()
        status = (read_json(source.status) or {}) | {"state": "interrupted", "name": CHAMPION, "steps": crown.steps}
        write_json(layout.status, status)

    def prune(self, ledger: Ledger) -> list[str]:
        """See `Store.prune`. What is alive, or is to have children, is never touched."""
        board = ledger.board
        for name, member in board.members.items():
            stamp = (member.steps, name in ledger.alive)
            if self._measured.get(name) != stamp:
                self._measured[name], self._sizes[name] = stamp, _size(self.path(name))
        total, limit = sum(self._sizes.values()), self.recipe.section.disk_gigabytes * 1e9
        needed = set(ledger.alive) | ({ledger.pending.parent} if ledger.pending is not None else set())
        over = [m for name, m in board.members.items() if name not in needed and self._sizes[name] > 0]
        over.sort(key=lambda member: (member.score if member.score is not None else float("-inf"), member.updated))
        gone: list[str] = []
        for member in over:
            if total <= limit:
                break
            total -= self._sizes[member.id]
            self._sizes[member.id] = 0
            for folder in ("checkpoints", HELD, "snapshots"):
                shutil.rmtree(self.path(member.id) / folder, ignore_errors=True)
            gone.append(member.id)
        return gone


def find_checkpoint(root: Path, steps: int | None = None) -> Path:
    """A checkpoint of a member, those that are held included; the newest if not told which.

    Args:
        root: the member's directory.
        steps: of the checkpoint.

    Raises:
        DamagedError: there is none.
    """
    if steps is None:
        found = _numbered(root / "checkpoints")
        if found:
            return found[-1]
    for folder in (HELD, "checkpoints"):
        path = root / folder / name_of(steps or 0)
        if (path / "manifest.json").exists():
            return path
    raise DamagedError(
        f"{root}: no checkpoint at {steps if steps is not None else 'all'}",
        expected="the one that its children start from",
        found=", ".join(path.name for path in _numbered(root / "checkpoints")) or "none",
        remedy="leave members/ as it is while the tournament lasts",
    )


def name_of(steps: int) -> str:
    """Folder of a checkpoint, as the engine names it."""
    return f"{steps:0{STEPS_DIGITS}d}"


def set_aside(path: Path, folder: Path) -> Path:
    """Move a directory that is in the way into a folder, under a name that is free there."""
    folder.mkdir(exist_ok=True)
    number = 1
    while (aside := folder / f"{path.name}-{number}").exists():
        number += 1
    os.rename(path, aside)
    return aside


def link_folder(source: Path, target: Path) -> None:
    """A folder with the same files, without a copy where the file system can do that; whole or not there.

    Raises:
        FileNotFoundError: `source` was removed meanwhile.
        OSError: the disk is full or read-only.
    """
    temporary = target.with_name(f".{target.name}.link")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        for file in source.iterdir():
            try:
                os.link(file, temporary / file.name)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without hard links
                shutil.copyfile(file, temporary / file.name)
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _is_used(layout: RunLayout) -> bool:
    """Whether users train a former champion on, or have had something made of it."""
    made = any(any((layout.root / folder).glob("*")) for folder in MADE)
    return made or len(_numbered(layout.checkpoints)) > 1 or is_owned(layout.lock)


def _numbered(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("[0-9]*") if path.name.isdigit()), key=lambda path: int(path.name))


def _size(root: Path) -> int:
    """Bytes of a member's checkpoints; those that it shares with others count for each."""
    total = 0
    for folder in ("checkpoints", HELD):
        for file in (root / folder).glob("*/*"):
            with contextlib.suppress(OSError):
                total += file.lstat().st_size
    return total
