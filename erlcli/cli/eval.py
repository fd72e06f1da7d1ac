"""`erl eval`: how good a trained policy is, and how it looks."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from erlcli.cli.output import count, print_json
from erlcli.cli.policies import HELP, find_policies, parse_ensemble, which
from erlcli.errors import EnvError, RecipeError
from erlcli.runs.text import plural

if TYPE_CHECKING:
    from erlcli.core.types import EnvSpec
    from erlcli.engine.evaluate import Evaluation, Scores
    from erlcli.engine.load_policy import LoadedPolicy

INTERRUPTED = 130
WIDTH = 80  # of the report
TERMINAL_FPS = 15.0  # more costs a slow connection what nobody sees


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Runs, tournaments or checkpoints.", show_default=False)
    ],
    episodes: Annotated[int, typer.Option(min=1, help="Exactly so many are played.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the fixed set of episodes.")] = 1,
    checkpoint: Annotated[
        str | None, typer.Option(help="best, last, a number of steps, or a path.", show_default="best")
    ] = None,
    ensemble: Annotated[str | None, typer.Option(help=HELP)] = None,
    num_envs: Annotated[int | None, typer.Option(min=1, help="Stepped together; default: eval.num_envs.")] = None,
    render: Annotated[bool, typer.Option("--render", help="Show the episodes in the env's window.")] = False,
    video: Annotated[Path | None, typer.Option(help="Film the first episode into this .mp4 file.")] = None,
    video_episodes: Annotated[int, typer.Option(min=1, help="Episodes that --video films.")] = 1,
    terminal: Annotated[bool, typer.Option("--terminal", help="Show the episodes in this terminal.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Evaluate a trained policy, or several that act as one.

    Plays a fixed set of episodes with the deterministic policy and prints
    statistics of return and length. Nothing in the run directory changes.

    Of a tournament the champion plays. With --ensemble, all that are named act
    as one: mean averages actions or the probabilities of choices, vote takes
    the choice of the majority; of a tournament the best of its board take part.
    """
    _check_film(video, video_episodes)
    shown = Shown(render, terminal, video, min(video_episodes, episodes) if video is not None else 0)
    shown.check(json_output)
    together = parse_ensemble(ensemble)
    chosen = find_policies(runs, which(runs, checkpoint, together), together)
    with _stop_flag() as stop, _clean_stdout() if json_output else contextlib.nullcontext():
        import torch

        from erlcli.envs.offscreen import draw_offscreen

        torch.set_num_threads(1)  # like the run's own evaluator
        if not render:
            draw_offscreen()
        loaded = chosen.load()
        player = Player(loaded, episodes, seed, num_envs or loaded.recipe.eval.num_envs, shown, stop)
        try:
            player.play()
        except EnvError as error:
            if trace := error.details.get("traceback"):
                print(trace, file=sys.stderr)
            raise
    done = player.scores()
    if done.returns:
        row = summary(runs[0] if len(runs) == 1 else None, loaded, done, seed, video)
        if json_output:
            print_json(row | {"interrupted": len(done.returns) < episodes})
        else:
            print("\n".join(report(row)))
    if len(done.returns) < episodes:
        print(f"interrupted: {len(done.returns)} of {episodes} episodes were over", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)


def _check_film(video: Path | None, episodes: int) -> None:
    if video is None and episodes > 1:
        raise RecipeError(
            f"--video-episodes {episodes}: there is no film",
            expected="--video FILE.mp4 beside it",
            found="no --video",
            remedy="--video FILE.mp4, or leave --video-episodes out",
        )


def summary(root: Path | None, loaded: LoadedPolicy, scores: Scores, seed: int, video: Path | None) -> dict[str, Any]:
    """What `--json` prints; `root` is what was named, None for several."""
    from erlcli.engine.ensemble import algorithms_of

    recipe, rule = loaded.recipe, loaded.facts.get("ensemble")
    return {
        "run": str(root) if root is not None else None,
        "env": recipe.env.id,
        "algorithm": algorithms_of(loaded),
        "checkpoint": loaded.facts["checkpoint"],
        "checkpoint_path": str(loaded.source) if rule is None else None,
        "steps": loaded.facts["steps"],
        "ensemble": None if rule is None else {"rule": rule, "members": loaded.facts["members"]},
        "seed": seed,
        **scores.summary(seed),
        "target_return": recipe.train.target_return,
        "video": str(video) if video is not None else None,
    }


def report(row: dict[str, Any]) -> list[str]:
    """The same for people."""
    steps = f" at {count(row['steps'])} steps" if row["steps"] is not None else ""
    target, env = row["target_return"], row["env"].rpartition("/")[2]  # of a file, its name will do

    def interval(name: str) -> str:
        low, high = row[name]
        return f"  95% CI [{low:.2f}, {high:.2f}]"

    together, what = row["ensemble"], row["checkpoint"]
    if together is not None:
        what = f"{together['rule']} of {plural(len(together['members']), 'policy', 'policies')}"
    played = f"{plural(row['episodes'], 'episode')}, seed {row['seed']}"
    head = f"{env}, {row['algorithm']}, {what}{steps}: {played}"
    lines = [
        *([head] if len(head) <= WIDTH else [f"{what}{steps}", f"{env}, {row['algorithm']}: {played}"]),
        f"  return  mean   {row['return_mean']:10.2f}{interval('return_ci')}",
        f"          IQM    {row['return_iqm']:10.2f}{interval('return_iqm_ci')}",
        f"          median {row['return_median']:10.2f}",
        f"          std    {row['return_std']:10.2f}",
        f"          min    {row['return_min']:10.2f}",
        f"          max    {row['return_max']:10.2f}",
        f"  length  mean   {row['length_mean']:10.2f}{interval('length_ci')}",
    ]
    if target is not None:
        lines.append(f"  target         {target:10.2f}  {'' if row['return_mean'] >= target else 'not '}reached")
    for member in together["members"] if together is not None else ():
        at = f" at {count(member['steps'])} steps" if member["steps"] is not None else ""
        lines.append(f"  member  {member['name']:.40}, {member['algorithm']}{at}")
    if row["video"] is not None:
        lines.append(f"  video   {row['video']}")
    return lines


@contextlib.contextmanager
def _stop_flag() -> Iterator[Callable[[], bool]]:
    """Whether someone asked to stop: Ctrl+C once ends the evaluation between two steps, twice leaves at once."""
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    handlers = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _clean_stdout() -> Iterator[None]:
    """Send to stderr what envs and their libraries print, at the level of file descriptors: stdout is for JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@dataclass(frozen=True)
class Shown:
    """What is to be seen of the episodes."""

    window: bool
    terminal: bool
    video: Path | None
    filmed: int

    def check(self, json_output: bool) -> None:
        """Refuse what can't be shown before anything is played.

        Raises:
            RecipeError: options that exclude each other, no display, no terminal, no place for the film.
        """
        from erlcli.engine.video import check_video_path
        from erlcli.envs.offscreen import has_display

        if self.window and (self.terminal or self.video is not None):
            other = "--terminal" if self.terminal else "--video"
            raise RecipeError(
                f"--render and {other}: an env draws either into its window or into pictures",
                expected="one of the two",
                found="both",
                remedy="call erl eval twice: the same seed plays the same episodes",
            )
        if self.window and not has_display():
            raise RecipeError(
                "--render: there is no display for the env's window",
                expected="DISPLAY or WAYLAND_DISPLAY in the environment",
                found="neither",
                remedy="--video FILE.mp4 films without a display, --terminal draws here",
            )
        if self.terminal and (json_output or not sys.stdout.isatty() or os.environ.get("TERM") in (None, "dumb")):
            found = "--json" if json_output else f"TERM={os.environ.get('TERM', '')}, or a pipe or file"
            raise RecipeError(
                "--terminal: standard output is no terminal to draw on",
                expected="a terminal that can place characters",
                found=found,
                remedy="--video FILE.mp4 films into a file",
            )
        if self.video is not None:
            check_video_path(self.video)


class Player:
    """Plays the episodes: those that are shown one by one in an env of their own, the others together.

    Args:
        loaded: the policy.
        episodes: how many.
        seed: of the set.
        num_envs: stepped together.
        shown: what is to be seen.
        stop: whether to give up.
    """

    def __init__(
        self, loaded: LoadedPolicy, episodes: int, seed: int, num_envs: int, shown: Shown, stop: Callable[[], bool]
    ) -> None:
        self.loaded, self.episodes, self.seed, self.num_envs = loaded, episodes, seed, num_envs
        self.shown, self.stop = shown, stop
        self._done: dict[int, tuple[float, int]] = {}  # return and length by number of the episode
        self._tell: Callable[[str | None], None] = lambda text: None

    def scores(self) -> Scores:
        """Of the episodes that are over, in their order, so that they don't depend on the number of envs."""
        from erlcli.engine.evaluate import Scores

        ordered = [self._done[number] for number in sorted(self._done)]
        return Scores([total for total, _ in ordered], [length for _, length in ordered])

    def play(self) -> None:
        """Play until all episodes are over or someone interrupts."""
        from erlcli.engine.failures import Interrupted

        shown = self.shown
        alone = self.episodes if shown.window or shown.terminal else shown.filmed
        with contextlib.suppress(Interrupted), self._progress():
            self._play(range(alone), 1, "human" if shown.window else "rgb_array")
            self._play(range(alone, self.episodes), self.num_envs, None)

    def _play(self, episodes: range, num_envs: int, mode: str | None) -> None:
        if not episodes:
            return
        from erlcli.engine.evaluate import Evaluation
        from erlcli.engine.evaluate_torch import make_evaluation
        from erlcli.envs.config import env_config

        config, policy = env_config(self.loaded.recipe.env, min(num_envs, len(episodes))), self.loaded.policy
        watched = Evaluation(config, self.seed, mode) if mode is not None else None
        evaluation = watched or make_evaluation(config, self.seed)
        try:
            _check_spaces(self.loaded, evaluation.spec)
            if watched is None:
                evaluation.run(policy, episodes, on_episode=self._on_episode, stop=self.stop)
                return
            with contextlib.ExitStack() as stack:
                watch = self._watcher(watched, stack)
                watched.run(policy, episodes, on_episode=self._on_episode, watch=watch, stop=self.stop)
        finally:
            evaluation.close()

    def _on_episode(self, episode: int, total: float, length: int) -> None:
        self._done[episode] = (total, length)
        self._tell(None)

    def _watcher(self, evaluation: Evaluation, stack: contextlib.ExitStack) -> Callable[[int, int, float], None]:
        """What is called at each step of the env that is shown."""
        from erlcli.engine.terminal import Screen, color_depth
        from erlcli.engine.video import VideoWriter

        shown = self.shown
        film = screen = None
        if shown.video is not None:
            film = stack.enter_context(VideoWriter(shown.video, evaluation.fps))
        if shown.terminal:
            depth = color_depth(os.environ, sys.stdout.encoding or "")
            screen = stack.enter_context(Screen(sys.stdout, depth, shutil.get_terminal_size))
        frame_due = draw_due = 0.0

        def watch(episode: int, steps: int, total: float) -> None:
            nonlocal frame_due, draw_due
            now = time.monotonic()
            filming = film is not None and episode < shown.filmed
            drawing = screen is not None and (now >= draw_due or steps == 0)
            if filming or drawing:
                frame = evaluation.render()
                if film is not None and filming:
                    film.write(frame)
                    self._tell(f"filming episode {episode + 1} of {shown.filmed}: {film.frames:,} frames")
                if screen is not None and drawing:
                    draw_due = now + 1 / TERMINAL_FPS
                    screen.show(frame, f"episode {episode + 1}/{self.episodes}  step {steps}  return {total:.2f}")
            if shown.window or shown.terminal:  # at the env's own pace
                frame_due = max(frame_due + 1 / evaluation.fps, now)
                time.sleep(max(0.0, frame_due - time.monotonic()))

        return watch

    @contextlib.contextmanager
    def _progress(self) -> Iterator[None]:
        """Show how far things are, where a person looks on."""
        if self.shown.terminal or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("playing", total=self.episodes)

            def tell(text: str | None) -> None:
                returns = [total for total, _ in self._done.values()]
                mean = f"mean return {sum(returns) / len(returns):.2f}" if returns else "playing"
                progress.update(task, completed=len(returns), description=text or mean)

            self._tell = tell
            yield


def _check_spaces(loaded: LoadedPolicy, found: EnvSpec) -> None:
    """Whether the env is still what the policy was trained in; bounds may differ, as they do between backends."""

    def structure(space: Any) -> tuple[Any, ...]:  # noqa: ANN401 - any space
        return type(space).__name__, *(getattr(space, name, None) for name in ("shape", "n", "nvec"))

    for what in ("obs", "action"):
        trained, here = getattr(loaded.spec, what), getattr(found, what)
        if structure(trained) != structure(here):
            raise EnvError(
                f"env.id {loaded.recipe.env.id}: another {what} space than in training",
                expected=f"{trained!r:.200}",
                found=f"{here!r:.200}",
                remedy="install the version of the env that the policy was trained in",
            )
