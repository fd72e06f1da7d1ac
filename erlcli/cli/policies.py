"""Which policy a command is about: that of a run, a tournament or a checkpoint, or several of them as one.

| what is named | which policy it is |
| --- | --- |
| a run | the one that `--checkpoint` says |
| a tournament | its champion; with `--ensemble`, the best of its board |
| a checkpoint folder or a snapshot inside a run | that one |
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from erlcli.errors import RecipeError
from erlcli.runs.journal import FILE
from erlcli.runs.layout import RunLayout, open_run
from erlcli.runs.text import quoted

if TYPE_CHECKING:
    from erlcli.engine.load_policy import LoadedPolicy

RULES = ("mean", "vote")
TOP = 5  # members of a tournament where --ensemble doesn't say how many
HELP = "Act as one: mean, vote, or a number of a tournament's best (5 or 5,vote)."


@dataclass(frozen=True)
class Ensemble:
    """What `--ensemble` says.

    Attributes:
        rule: `mean` or `vote`.
        top: how many of a tournament's board; None where that was not said.
    """

    rule: str
    top: int | None


@dataclass(frozen=True)
class Policies:
    """What the paths of a command name.

    Attributes:
        layout: the run or tournament that was named, the first of several.
        named: the runs, and what to load of each.
        ensemble: how they act as one; None for a single policy.
        several: whether more than one path was named.
    """

    layout: RunLayout
    named: list[tuple[RunLayout, str]]
    ensemble: Ensemble | None
    several: bool

    def load(self) -> LoadedPolicy:
        """Load them.

        Raises:
            RecipeError: there is no such checkpoint, or the policies don't fit each other.
            DamagedError: a checkpoint is damaged.
        """
        from erlcli.engine.load_policy import load_policy

        if self.ensemble is None:
            return load_policy(*self.named[0])
        from erlcli.engine.ensemble import combine

        loaded: list[LoadedPolicy] = []
        for run, which in self.named:
            one = load_policy(run, which)
            if any(one.source == other.source for other in loaded):
                print(f"{one.source}: named twice, counts once", file=sys.stderr)
            else:
                loaded.append(one)
        _note_envs(loaded)
        return combine(loaded, "vote" if self.ensemble.rule == "vote" else "mean")


def parse_ensemble(text: str | None) -> Ensemble | None:
    """The value of `--ensemble`: `mean`, `vote`, `N`, or `N,mean` and `N,vote`; None where it was not given.

    Raises:
        RecipeError: it is none of these.
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    rules, numbers = [part for part in parts if part in RULES], [part for part in parts if part.isdigit()]
    if len(rules) > 1 or len(numbers) > 1 or len(rules) + len(numbers) != len(parts) or "0" in numbers:
        raise RecipeError(
            f"--ensemble {text}: not understood",
            expected="mean, vote, a number of a tournament's best members, or both",
            found=text or "nothing",
            remedy="--ensemble mean, --ensemble vote, --ensemble 5 or --ensemble 5,vote",
        )
    return Ensemble(rules[0] if rules else "mean", int(numbers[0]) if numbers else None)


def which(paths: Sequence[Path], checkpoint: str | None, ensemble: Ensemble | None) -> str:
    """What `--checkpoint` says of the runs among the paths: the best policy where it was not given.

    Raises:
        RecipeError: it was given, and none of the paths is a run to choose a checkpoint of.
    """
    if checkpoint is None:
        return "best"
    if all(_is_checkpoint(path) or (ensemble is not None and is_tournament(path)) for path in paths):
        raise RecipeError(
            f"--checkpoint {checkpoint}: what is named leaves no choice",
            expected="a run, or the champion of a tournament",
            found=", ".join(map(str, paths[:3])) + (" ..." if len(paths) > 3 else ""),
            remedy="name the run, or leave --checkpoint out",
        )
    return checkpoint


def find_policies(paths: Sequence[Path], checkpoint: str, ensemble: Ensemble | None) -> Policies:
    """Look up what the paths name; nothing heavy is imported yet.

    Args:
        paths: at least one.
        checkpoint: of those that are runs.
        ensemble: how several act as one.

    Raises:
        RecipeError: one is none of what can be named, or there are several without an ensemble.
    """
    if ensemble is None and len(paths) > 1:
        raise RecipeError(
            f"{len(paths)} policies are named, which can't all act",
            expected="one run, tournament or checkpoint, or --ensemble",
            found=", ".join(map(str, paths[:3])) + (" ..." if len(paths) > 3 else ""),
            remedy="--ensemble mean, --ensemble vote, or one command for each",
        )
    if ensemble is not None and ensemble.top is not None and not any(map(is_tournament, paths)):
        raise RecipeError(
            f"--ensemble {ensemble.top}: a number is for tournaments",
            expected="a tournament, whose board says who is best",
            found=", ".join(map(str, paths[:3])),
            remedy=f"--ensemble {ensemble.rule} takes all that are named",
        )
    named = [source for path in paths for source in _sources(path, checkpoint, ensemble)]
    layout = RunLayout(paths[0]) if is_tournament(paths[0]) else named[0][0]
    return Policies(layout, named, ensemble, several=len(paths) > 1)


def is_tournament(path: Path) -> bool:
    """Whether this is a tournament's directory."""
    return (path / FILE).is_file()


def _is_checkpoint(path: Path) -> bool:
    """Whether this is a checkpoint's folder or a file of weights."""
    return path.exists() and (path.suffix == ".safetensors" or (path / "policy.safetensors").is_file())


def _sources(path: Path, checkpoint: str, ensemble: Ensemble | None) -> list[tuple[RunLayout, str]]:
    """Runs and what to load of each."""
    if is_tournament(path):
        if ensemble is not None:
            return board(path, ensemble.top or TOP, exact=ensemble.top is not None)
        champion = RunLayout(path / "champion")
        if champion.recipe.is_file():
            return [(champion, checkpoint)]
        raise _no_champion(path)
    if _is_checkpoint(path):
        for root in path.resolve().parents:
            if (root / "recipe.toml").is_file():
                return [(RunLayout(root), str(path))]
        raise RecipeError(
            f"{path}: a checkpoint outside of any run",
            expected="one in a run directory, whose recipe says what network it has",
            found=f"no recipe.toml above {path.resolve().parent}",
            remedy=f"name the run: RUN --checkpoint {path}",
        )
    return [(open_run(path), checkpoint)]


def _no_champion(path: Path) -> RecipeError:
    """Why a tournament's `champion` is no run: its journal names none yet, or what it was is gone."""
    from erlcli.runs.journal import Journal
    from erlcli.runs.lock import is_owned

    journal = Journal(path)
    journal.refresh()
    crown, again = journal.board.crown, f"erl resume {quoted(path)}"
    others = f"name one of {path / 'members'}"
    if crown is not None:
        return RecipeError(
            f"{path / 'champion'}: the champion's folder is gone",
            expected=f"a run with the weights of {crown.member.id} at {crown.steps:,} steps",
            found="no recipe.toml there",
            remedy=f"{again} makes it again, or {others}",
        )
    wait = "wait for it" if is_owned(RunLayout(path).lock) else f"{again} goes on"
    return RecipeError(
        f"{path}: this tournament has no champion yet",
        expected="a member that was confirmed on fresh episodes",
        found=f"no {path / 'champion'}",
        remedy=f"{wait}, or {others}",
    )


def board(path: Path, top: int, *, exact: bool) -> list[tuple[RunLayout, str]]:
    """The best of a tournament's board, each with the checkpoint that it was scored with.

    Args:
        path: the tournament's directory.
        top: how many.
        exact: whether fewer than that are an error.

    Raises:
        RecipeError: there are too few.
    """
    from erlcli.recipe.tournament import load_tournament
    from erlcli.runs.jsonl import read
    from erlcli.tournament.ledger import fold
    from erlcli.tournament.members import FOLDER, find_checkpoint

    recipe = load_tournament(path / "recipe.toml")
    ledger = fold(read(path / FILE), lower_bound=recipe.section.evaluation.score == "lower_bound")
    ranked = ledger.ranked()
    if not ranked or (exact and len(ranked) < top):
        raise RecipeError(
            f"{path}: fewer than {top} members on its board",
            expected=f"at least {top if exact else 1} that are scored and in the race",
            found=str(len(ranked)),
            remedy=f"--ensemble {len(ranked)}" if ranked else "wait for the first scores",
        )
    runs = [(path / FOLDER / entry.id, entry.scored) for entry in ranked[:top]]
    return [(RunLayout(run), str(find_checkpoint(run, steps))) for run, steps in runs]


def _note_envs(loaded: Sequence[LoadedPolicy]) -> None:
    """Say which policies learnt in another environment than the one that is played."""

    def env(one: LoadedPolicy) -> dict[str, object]:
        return one.recipe.env.model_dump(exclude={"backend", "num_envs"})

    others = [str(one.source) for one in loaded if env(one) != env(loaded[0])]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        print(f"{others[0]}{more}: another [env] section than the first, whose env is played", file=sys.stderr)
