"""A tournament's recipe: an ordinary recipe, which every member starts from, and a section `[tournament]`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, ValidationError

from erlcli.algorithms import registry
from erlcli.errors import RecipeError
from erlcli.recipe import space as spaces
from erlcli.recipe.explain import check_numbers, explain
from erlcli.recipe.load import AnyRecipe, anchored, load, merge, read_toml, validate
from erlcli.recipe.schema import Auto, Count, Section
from erlcli.recipe.shipped import find
from erlcli.recipe.space import NAME, Mutation, Settings, Space
from erlcli.recipe.words import found, wrap

SECTION = "tournament"
DEFAULT = "tournament_lunarlander"


class SliceSection(Section):
    """What a member trains at a time: env steps, or seconds."""

    steps: int | None = Field(None, ge=1, description="Env steps of a slice.")
    seconds: float | None = Field(None, gt=0, description="Seconds of a slice; results then depend on the machine.")


class BudgetSection(Section):
    """When the whole tournament ends; reaching train.target_return ends it, too."""

    steps: Count | Auto = Field("auto", description="Env steps over all members; auto is members * train.total_steps.")
    seconds: float | None = Field(None, gt=0, description="Seconds after which no slice is started any more.")


class SelectionSection(Section):
    """How parents are chosen from the leaderboard."""

    kind: Literal["softmax", "tournament", "truncation"] = Field(
        "softmax", description="softmax over z-scores, the best of a few drawn, or one of the best."
    )
    temperature: float = Field(0.5, gt=0, description="Of the softmax: small ones prefer the best more.")
    size: int = Field(3, ge=1, description="Members drawn for a tournament of which the best is chosen.")
    share: float = Field(
        0.25,
        gt=0,
        le=1,
        description="Of the leaderboard: the best that truncation draws from, the worst that pbt replaces.",
    )


class MutationSection(Section):
    """How a child's settings come from its parent's."""

    factors: list[float] = Field(
        [0.8, 1.25], min_length=2, max_length=2, description="Largest changes, down and up: one below and one above 1."
    )
    probability: float = Field(0.5, ge=0, le=1, description="Of each key to change.")
    resample: float = Field(0.1, ge=0, le=1, description="Share of changes that are drawn from the whole distribution.")
    crossover: float = Field(0.0, ge=0, le=1, description="Probability of a second parent for about half of the keys.")
    fresh: float = Field(0.0, ge=0, le=1, description="Share of new members that start without a parent.")


class EvaluationSection(Section):
    """How members are scored."""

    episodes: int = Field(20, ge=2, description="Episodes after each slice, the same ones for all members.")
    score: Literal["mean", "lower_bound"] = Field(
        "lower_bound", description="Ranks by the mean return, or by the lower bound of its 95 % confidence interval."
    )
    recheck: bool = Field(
        True, description="Play a member again, on fresh episodes, before it becomes a parent for the first time."
    )
    confirm_episodes: int = Field(
        50, ge=2, description="Fresh episodes that a member has to prove itself in before it becomes champion."
    )


class TournamentSection(Section):
    """A population that trains, competes and evolves."""

    mode: Literal["tournament", "generational", "pbt", "independent"] = Field(
        "tournament",
        description="Without barriers, with one after each slice, each member on its own clock, or no evolution.",
    )
    members: int = Field(8, ge=1, le=100_000, description="Members at the start.")
    leaderboard: Count | Auto = Field("auto", description="Places on the leaderboard; auto is one a member.")
    burn_in: int = Field(1, ge=1, description="Slices that a founder trains before it is judged.")
    patience: int = Field(
        2, ge=1, description="Children that may fall clearly short of a member's score before it gives up its place."
    )
    pods_per_member: int = Field(
        1, ge=1, le=64, description="Seeds that each member trains with; their weights are averaged after the slice."
    )
    survivors: float = Field(
        0.5, gt=0, le=1, description="Share of a generation that goes on; the others are replaced by their children."
    )
    max_failures: int = Field(3, ge=1, description="Failed slices in a row after which a member is retired.")
    copy_replay: bool = Field(True, description="Whether a child begins with its parent's replay, too.")
    disk_gigabytes: float = Field(5.0, gt=0, description="For checkpoints; those of retired members go first.")
    slice: SliceSection = Field(default_factory=SliceSection, description=SliceSection.__doc__)
    budget: BudgetSection = Field(default_factory=BudgetSection, description=BudgetSection.__doc__)
    selection: SelectionSection = Field(default_factory=SelectionSection, description=SelectionSection.__doc__)
    mutation: MutationSection = Field(default_factory=MutationSection, description=MutationSection.__doc__)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection, description=EvaluationSection.__doc__)
    search: dict[str, Any] = Field({}, description="Distributions by key, quoted and dotted or nested.")


class _Whole(Section):
    tournament: TournamentSection = Field(description=TournamentSection.__doc__)


@dataclass(frozen=True)
class TournamentRecipe:
    """A checked tournament recipe.

    Attributes:
        base: what every member starts from; its seed is the tournament's, its budget that of a lineage.
        section: `[tournament]`.
        space: what is searched.
        source: names it in messages.
    """

    base: AnyRecipe
    section: TournamentSection
    space: Space
    source: str

    @property
    def budget_steps(self) -> int:
        """Env steps over all members."""
        steps = self.section.budget.steps
        return self.section.members * self.base.train.total_steps if steps == "auto" else steps

    @property
    def leaderboard(self) -> int:
        """Places on the leaderboard."""
        places = self.section.leaderboard
        return self.section.members if places == "auto" else places

    @property
    def mutation(self) -> Mutation:
        """As the space takes it."""
        section = self.section.mutation
        low, high = sorted(section.factors)
        return Mutation((low, high), section.probability, section.resample, section.crossover)

    def member(self, settings: Mapping[str, Any], seed: int) -> AnyRecipe:
        """The recipe of a member.

        Args:
            settings: values of the searched keys.
            seed: of its run.

        Raises:
            RecipeError: the settings don't fit each other.
        """
        data = self.base.to_toml()
        algorithm = settings.get(NAME, self.base.algorithm.name)
        if algorithm != self.base.algorithm.name:
            data["algorithm"] = {"name": algorithm}  # the others' keys mean nothing to it
        for key, value in settings.items():
            _assign(data, key, value)
        data["train"]["seed"] = seed
        return validate(data, self.source)

    def accepts(self, settings: Mapping[str, Any]) -> bool:
        """Whether a member can have these settings."""
        try:
            self.member(settings, 0)
        except RecipeError:
            return False
        return True

    def dump(self) -> str:
        """TOML text that `load_tournament` reads back to an equal recipe."""
        return tomli_w.dumps({**self.base.to_toml(), SECTION: self.section.model_dump(exclude_none=True)})


def load_tournament(reference: str | Path, overrides: list[str] | None = None) -> TournamentRecipe:
    """The tournament recipe of a path or a shipped name.

    Args:
        reference: as of `recipe.load.load`.
        overrides: `dotted.key=TOML value`, keys of `[tournament]` included.

    Raises:
        RecipeError: anything is wrong with it.
    """
    path = find(reference)
    data = anchored(read_toml(path), path.parent)
    if overrides:
        data = anchored(merge(data, overrides), Path.cwd())
    recipe = check_tournament(data, str(reference))
    for override in overrides or []:
        _check_counts(recipe, override.partition("=")[0].strip())
    return recipe


def _check_counts(recipe: TournamentRecipe, key: str) -> None:
    """Refuse a key whose value no member would have, since each has its own.

    Raises:
        RecipeError: it is one.
    """
    base, space = recipe.base.algorithm.name, recipe.space
    concerned = [base] if key.startswith("algorithm.") else space.algorithms
    searched = [{*space.common, *space.keys(name)} for name in concerned]
    if all(any(key == one or key.startswith(f"{one}.") for one in keys) for keys in searched):
        raise RecipeError(
            f"--set {key}: is searched, so that members have values of their own",
            expected="a key that they share",
            found=f"tournament.search has {key}",
            remedy="change tournament.search, in the recipe of a new tournament",
        )


def load_any(reference: str | Path) -> tuple[AnyRecipe, str | None]:
    """The recipe of a run, or the one that a tournament's members start from and the tournament's mode.

    Raises:
        RecipeError: anything is wrong with it.
    """
    if SECTION in read_toml(find(reference)):
        tournament = load_tournament(reference)
        return tournament.base, tournament.section.mode
    return load(reference), None


def check_tournament(data: dict[str, Any], source: str) -> TournamentRecipe:
    """Raw tables to a checked recipe; `source` names them in messages.

    Raises:
        RecipeError: anything is wrong with them.
    """
    if SECTION not in data:
        raise RecipeError(
            f"{source}: [tournament]: missing",
            expected=wrap("a section [tournament], with [tournament.slice] and [tournament.search]"),
            found="a recipe of one run",
            remedy=f"add it, or train one run: erl train {shlex.quote(source)}",
        )
    own = {SECTION: data[SECTION]}
    check_numbers(own, source)
    try:
        section = _Whole.model_validate(own, strict=True).tournament
    except ValidationError as error:
        raise explain(error, own, _Whole, source) from None
    base = validate({key: value for key, value in data.items() if key != SECTION}, source)
    space = spaces.parse(section.search, base.algorithm.name, list(registry.configs()), source)
    recipe = TournamentRecipe(base, section, space, source)
    _check_together(recipe)
    _check_space(recipe)
    return recipe


def _check_together(recipe: TournamentRecipe) -> None:
    section, base = recipe.section, recipe.base

    def misfit(key: str, expected: str, value: object, remedy: str) -> RecipeError:
        message = f"{recipe.source}: tournament.{key}: does not fit the rest of the recipe"
        return RecipeError(message, expected=wrap(expected), found=found(value), remedy=wrap(remedy))

    steps, seconds = section.slice.steps, section.slice.seconds
    if (steps is None) == (seconds is None):
        value = "neither" if steps is None else "both"
        raise misfit("slice", "one of steps and seconds", value, "set tournament.slice.steps or .seconds alone")
    if steps is not None and steps > base.train.total_steps:
        raise misfit("slice.steps", f"at most train.total_steps = {base.train.total_steps:,}", steps,
                     "lower it, or raise train.total_steps, the budget of a lineage")  # fmt: skip
    if base.engine.learners > 1:
        raise RecipeError(
            f"{recipe.source}: engine.learners: a member of a tournament has one learner",
            expected="1",
            found=f"{base.engine.learners}",
            remedy="leave engine.learners out; a tournament uses more GPUs by more slots",
        )
    low, high = sorted(section.mutation.factors)
    if not 0 < low < 1 < high:
        raise misfit("mutation.factors", "one between 0 and 1, and one above 1", section.mutation.factors,
                     "factors = [0.8, 1.25]")  # fmt: skip
    if section.pods_per_member > 1 and section.mode in ("pbt", "independent"):
        raise misfit("pods_per_member", f'1 in the mode "{section.mode}"', section.pods_per_member,
                     'mode = "tournament" or "generational" fuses several seeds')  # fmt: skip


def _check_space(recipe: TournamentRecipe) -> None:
    """Every key exists and takes every value of its distribution; values that only clash with others are redrawn."""
    for algorithm in recipe.space.algorithms:
        start = _plain(recipe, algorithm)
        for key, distribution in recipe.space.keys(algorithm).items():
            for value in distribution.extremes():
                try:
                    recipe.member({**start, key: value}, 0)
                except RecipeError as error:
                    what = error.message.rpartition(": ")[2]
                    about = f": {key}: " in error.message or f": {key}." in error.message
                    if about and what in _OWN_FAULTS:
                        raise RecipeError(
                            f"{recipe.source}: tournament.search.{key}: {what}",
                            expected=error.expected,
                            found=found(value),
                            remedy=error.remedy,
                        ) from None


_OWN_FAULTS = ("out of range", "wrong type", "no such choice", "unknown key", "not allowed")


def _plain(recipe: TournamentRecipe, algorithm: str) -> Settings:
    """The values that all members of an algorithm share."""
    settings: Settings = {NAME: algorithm} if NAME in recipe.space.common else {}
    for key, distribution in recipe.space.subtrees.get(algorithm, {}).items():
        settings[key] = distribution.extremes()[0]
    return settings


def _assign(data: dict[str, Any], key: str, value: object) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):  # a schedule that was a plain number
            inner = data[part] = {}
        data = inner
    data[last] = value


def has_settings(recipe: AnyRecipe, settings: Mapping[str, Any]) -> bool:
    """Whether a recipe has these values of searched keys."""
    data = recipe.to_toml()
    for key, value in settings.items():
        _assign(data, key, value)
    try:
        return validate(data, "") == recipe
    except RecipeError:
        return False
