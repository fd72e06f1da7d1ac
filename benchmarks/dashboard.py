"""How quick and how cheap the dashboard is, measured from outside: it runs in a terminal of ours, as users run it.

    python benchmarks/dashboard.py                      all figures, some minutes
    python benchmarks/dashboard.py --only open keys     some of them
    python benchmarks/dashboard.py --updates 288000     as many as 10 a second give in 8 hours

What the dashboard writes is kept with its time of arrival and drawn afterwards by a terminal emulator (pyte), so that
looking at it costs the dashboard nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import synthetic
from report import NotMeasured, Settings, die_with_parent, flags, table

from erlcli.runs.jsonl import read
from erlcli.runs.layout import RunLayout

TITLE = "The dashboard"
BUDGET_SECONDS = 150.0
ROWS, COLUMNS = 40, 120
PATIENCE_SECONDS = 60.0
MEMBERS = 256
RATE = 10.0  # updates a second
BAR = "▌"  # beside the member under the cursor
DOWN, UP, PAGE_DOWN = b"\x1b[B", b"\x1b[A", b"\x1b[6~"


@dataclass(frozen=True)
class Figure:
    """A measured number and what it may be at most."""

    name: str
    value: float
    unit: str
    limit: float | None = None


class Terminal:
    """A dashboard in a pseudo terminal.

    Args:
        path: what it shows.
    """

    def __init__(self, path: Path) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        environment.pop("NO_COLOR", None)
        self.fd = master
        self.chunks: list[tuple[float, bytes]] = []  # what it wrote, with the time of arrival
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "erlcli.tui", str(path)],
            stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        os.close(slave)

    def read(self, seconds: float) -> None:
        """Take in what is written during the next `seconds`."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                return
            try:
                self.chunks.append((0.0, os.read(self.fd, 1 << 16)))
            except OSError:  # it has ended
                return
            self.chunks[-1] = (time.perf_counter(), self.chunks[-1][1])

    def press(self, key: bytes) -> float:
        """Press a key; when."""
        now = time.perf_counter()
        os.write(self.fd, key)
        return now

    def frames(self) -> Iterator[tuple[float, list[str]]]:
        """What was on screen after each piece of output, and since when."""
        import pyte

        screen = pyte.Screen(COLUMNS, ROWS)
        stream = pyte.ByteStream(screen)
        for at, data in self.chunks:
            stream.feed(data)
            yield at, screen.display

    def wait_for(self, shown: Callable[[list[str]], bool]) -> float:
        """Seconds from the start to the first frame of which `shown` says yes.

        Raises:
            TimeoutError: it did not come.
        """
        looked = 0
        while time.perf_counter() - self.started < PATIENCE_SECONDS:
            self.read(0.25)
            if len(self.chunks) == looked:
                continue
            looked = len(self.chunks)
            for at, lines in self.frames():
                if shown(lines):
                    return at - self.started
        raise TimeoutError("\n".join(line.rstrip() for line in list(self.frames())[-1][1]))

    @property
    def rss_mb(self) -> float:
        """Resident memory in MB."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(statm[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)
        self.read(1.0)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.fd)


@contextlib.contextmanager
def dashboard(path: Path) -> Iterator[Terminal]:
    """A dashboard for as long as the block lasts."""
    terminal = Terminal(path)
    try:
        yield terminal
    finally:
        terminal.close()


def run_is_shown(lines: list[str]) -> bool:
    """Whether a run's screen is complete: its curves, their last values, its footer."""
    text = "\n".join(lines)
    return "learning curve" in text and "target" in text and "no rows yet" not in text and "Help" in lines[-1]


def board_is_shown(lines: list[str]) -> bool:
    """Whether a leaderboard is complete."""
    return any(BAR in line for line in lines) and "members" in lines[1] and "Open" in lines[-1]


def figure_open(folder: Path, rows: int, limit: float, repeats: int) -> list[Figure]:
    """Start to first full paint of a run; the median."""
    path = folder / f"rows{rows}"
    synthetic.write_run(path, rows=rows, state="dead", attempts=3, now=time.time())
    seconds = []
    for _ in range(repeats):
        with dashboard(path) as terminal:
            seconds.append(terminal.wait_for(run_is_shown))
    name = f"start to first full paint, {rows:,} rows"
    return [Figure(name, sorted(seconds)[len(seconds) // 2], "s", limit)]


def member_under_cursor(lines: list[str]) -> str | None:
    """Its id; None where the table isn't there."""
    return next((line.split(BAR, 1)[1].replace("•", " ").split()[1] for line in lines if BAR in line), None)


def figure_keys(folder: Path, presses: int) -> list[Figure]:
    """Key press to paint while all members of a tournament get a row ten times a second."""
    path = folder / "cup"
    command = [sys.executable, synthetic.__file__, "replay-tournament", str(path), "--members", str(MEMBERS)]
    with subprocess.Popen([*command, "--rate", str(RATE)]) as replay:
        try:
            while not (path / "status.json").exists():
                time.sleep(0.05)
            with dashboard(path) as terminal:
                terminal.wait_for(board_is_shown)
                for _ in range(4):  # to the middle, where a key always moves the cursor
                    terminal.press(PAGE_DOWN)
                    terminal.read(0.3)
                pressed = []
                for number in range(presses):
                    pressed.append(terminal.press(UP if number % 2 else DOWN))
                    terminal.read(0.3 + 0.037 * (number % 7))  # at all phases of reading and showing
                delays = key_delays(terminal, pressed)
        finally:
            replay.terminate()
    delays.sort()
    name = f"key press to paint, {MEMBERS} members at {RATE:g} Hz"
    half, most = delays[len(delays) // 2], delays[min(int(len(delays) * 0.95), len(delays) - 1)]
    return [Figure(f"{name}, p50", 1e3 * half, "ms"), Figure(f"{name}, p95", 1e3 * most, "ms", 50.0)]


def key_delays(terminal: Terminal, pressed: list[float]) -> list[float]:
    """Seconds from each press to the frame in which the cursor is on another member.

    A press that shows nothing until the next one counts as long as that took.
    """
    ends = [*pressed[1:], float("inf")]
    delays: list[float] = []
    before = None
    for at, lines in terminal.frames():
        while len(delays) < len(pressed) and at > ends[len(delays)]:
            delays.append(ends[len(delays)] - pressed[len(delays)])
        member = member_under_cursor(lines)
        if len(delays) < len(pressed) and at > pressed[len(delays)] and member not in (None, before):
            delays.append(at - pressed[len(delays)])
        before = member or before
    if len(delays) < len(pressed):
        raise RuntimeError(f"the last of {len(pressed)} presses showed nothing")
    return delays


def figure_memory(folder: Path, updates: int) -> list[Figure]:
    """Memory before and after a replay of many updates."""
    replay = synthetic.RunReplay(folder / "replay", rows=updates + 100, start=100, now=time.time())
    with dashboard(folder / "replay") as terminal:
        terminal.wait_for(run_is_shown)
        memory: list[float] = []
        for number in range(updates):
            replay.step(time.time())
            if number % 500 == 0:
                terminal.read(0.25)  # so that it is shown piece by piece
                terminal.chunks.clear()
            if (number + 1) % max(1, updates // 4) == 0:
                terminal.read(2.0)
                memory.append(terminal.rss_mb)
    replay.close()
    name = f"memory over {updates:,} updates"
    quarters = [Figure(f"{name}, after {25 * (i + 1)} %", value, "MB") for i, value in enumerate(memory)]
    growth = memory[-1] - memory[len(memory) // 2 - 1]
    return [*quarters, Figure(f"{name}, growth of the second half", growth, "MB", 5.0)]


def figure_idle(folder: Path, seconds: float) -> list[Figure]:
    """Share of a core that an idle dashboard takes."""
    figures = []
    run, cup = folder / "idle", folder / "idle-cup"
    synthetic.write_run(run, rows=2_000, now=time.time())
    synthetic.write_tournament(cup, members=MEMBERS, state="finished", now=time.time(), member_rows=0)
    for name, path, shown in (("run", run, run_is_shown), ("tournament", cup, board_is_shown)):
        with dashboard(path) as terminal:
            terminal.wait_for(shown)
            terminal.read(2.0)
            before = terminal.cpu_seconds
            until = time.perf_counter() + seconds
            while (left := until - time.perf_counter()) > 0:
                terminal.read(left)
            figures.append(Figure(f"idle, {name}", 100 * (terminal.cpu_seconds - before) / seconds, "% of a core", 2.0))
    return figures


def figure_live(folder: Path, pairs: int, steps: int) -> list[Figure]:
    """What a dashboard costs the training that it shows: the same run without and with it, by turns."""
    ratios: list[float] = []
    cpu: list[float] = []
    for pair in range(pairs):
        alone, _ = train(folder / f"alone{pair}", steps, watched=False)
        watched, share = train(folder / f"watched{pair}", steps, watched=True)
        ratios.append(watched / alone)
        cpu.append(share)
    return [
        Figure(f"CPU on a live BipedalWalker run, median of {pairs}", statistics.median(cpu), "% of a core"),
        Figure(
            f"training lost to it, {steps:,} steps, median of {pairs} pairs",
            100 * (1 - statistics.median(ratios)),
            "%",
            2.0,
        ),
    ]


def train(path: Path, steps: int, *, watched: bool) -> tuple[float, float]:
    """Steps/s of training, and the share of a core in % that the dashboard took meanwhile."""
    sets = [f"train.total_steps={steps}", "train.target_return=1e9", f"eval.every_steps={steps}", "eval.episodes=2",
            "eval.probe_episodes=2"]  # fmt: skip
    command = [sys.executable, "-m", "erlcli", "train", "bipedal_ppo", "--run-dir", str(path), "--no-tui", *flags(sets)]
    share = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        while not (path / "metrics.jsonl").exists():
            if training.poll() is not None:
                raise NotMeasured(f"`{' '.join(command)}` left with {training.returncode}")
            time.sleep(0.05)
        with dashboard(path) if watched else contextlib.nullcontext() as terminal:
            began = time.perf_counter()
            while training.poll() is None:
                if terminal is None:
                    time.sleep(0.1)
                else:
                    terminal.read(0.5)
                    terminal.chunks.clear()
            if terminal is not None:
                share = 100 * terminal.cpu_seconds / (time.perf_counter() - began)
    last = read(RunLayout(path).metrics)[-1]
    return last["steps"] / last["time/seconds"], share


def section(settings: Settings) -> str:
    """See `report.section`. Fewer presses and updates than the script takes by itself."""
    try:
        import pyte  # noqa: F401 - the terminal emulator
    except ImportError:
        raise NotMeasured('no terminal emulator: pip install ".[test]"') from None
    repeats, presses, updates, idle = (1, 4, 200, 1.0) if settings.quick else (3, 80, 5_000, 10.0)
    pairs, steps = (1, 20_000) if settings.quick else (2, 200_000)
    measures = [
        lambda folder: figure_open(folder, 100_000, 1.0, repeats),
        lambda folder: figure_open(folder, 1_000_000, 2.0, repeats),
        lambda folder: figure_keys(folder, presses),
        lambda folder: figure_memory(folder, updates),
        lambda folder: figure_idle(folder, idle),
        lambda folder: figure_live(folder, pairs, steps),
    ]
    rows = []
    for measure in measures:
        with tempfile.TemporaryDirectory() as folder:
            try:
                figures = measure(Path(folder))
            except NotMeasured as error:
                settings.notes.append(str(error))
                continue
            except TimeoutError:
                settings.notes.append(f"a screen that was not complete after {PATIENCE_SECONDS:g} s")
                continue
        for figure in figures:
            limit = "" if figure.limit is None else f"{figure.limit:g}"
            rows.append([f"{figure.name}, {figure.unit}", f"{figure.value:.2f}", limit])
    return table(["what, on a pseudo terminal of 120 x 40", "figure", "at most"], rows)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description="Measure the dashboard.")
    names = ("open", "million", "keys", "memory", "idle", "live")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--repeats", type=int, default=5, help="starts, of which the median counts")
    parser.add_argument("--presses", type=int, default=240)
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=5, help="of trainings without and with a dashboard")
    args = parser.parse_args()
    measures: dict[str, Callable[[Path], list[Figure]]] = {
        "open": lambda folder: figure_open(folder, 100_000, 1.0, args.repeats),
        "million": lambda folder: figure_open(folder, 1_000_000, 2.0, args.repeats),
        "keys": lambda folder: figure_keys(folder, args.presses),
        "memory": lambda folder: figure_memory(folder, args.updates),
        "idle": lambda folder: figure_idle(folder, args.idle_seconds),
        "live": lambda folder: figure_live(folder, args.pairs, 400_000),
    }
    print(f"{'figure':<62} {'value':>9}  {'limit':>7}")
    for name in names:
        if name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for figure in measures[name](Path(folder)):
                limit = "" if figure.limit is None else f"{figure.limit:g}"
                verdict = "" if figure.limit is None else "ok" if figure.value <= figure.limit else "too much"
                print(f"{figure.name:<62} {figure.value:>9.2f}  {limit:>7} {figure.unit} {verdict}", flush=True)


if __name__ == "__main__":
    main()
