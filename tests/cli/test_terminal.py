"""The dashboard in a real terminal: it opens, it leaves in every way there is, and training never notices."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import psutil
import pyte
import pytest

from erlcli.runs.layout import RunLayout
from erlcli.runs.lock import is_owned

PATIENCE = 60.0
# So long a run would be compiled, which takes longer than a test waits.
SETTINGS = ["train.total_steps=1_000_000_000", "train.target_return=1000.0", "engine.compile=off"]
ENDLESS = ["train", "cartpole_ppo", *(word for setting in SETTINGS for word in ("--set", setting))]


class Terminal:
    """A command behind a pseudo-terminal, whose screen is kept by an emulator."""

    def __init__(self, *arguments, cwd, size=(120, 40), term="xterm-256color", controlling=True):
        self.ours, theirs = pty.openpty()
        self.screen = pyte.Screen(*size)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.changed = threading.Condition()
        self.resize(*size)
        self.before = termios.tcgetattr(theirs)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "erlcli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=os.environ | {"TERM": term, "COLORTERM": "truecolor"},
            start_new_session=True,
            preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if controlling else None,
        )
        self.theirs = theirs  # kept open, so that the terminal's settings can be read after the command has left
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.ours, 65536)
            except OSError:
                return
            with self.changed:
                self.raw += data
                # pyte knows neither private-parameter queries nor key protocols, and would print their ends
                with contextlib.suppress(Exception):
                    self.stream.feed(data)
                self.changed.notify_all()

    def resize(self, columns, rows):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def send(self, keys):
        os.write(self.ours, keys.encode())

    def text(self):
        return "\n".join(self.screen.display)

    def wait_for(self, words):
        deadline = time.monotonic() + PATIENCE
        with self.changed:
            while words not in self.text():
                left = deadline - time.monotonic()
                assert left > 0 and self.process.poll() is None, f"waited in vain for {words!r}:\n{self.text()}"
                self.changed.wait(min(left, 0.5))

    def wait_for_raw(self, data):
        deadline = time.monotonic() + PATIENCE
        with self.changed:
            while data not in self.raw:
                left = deadline - time.monotonic()
                assert left > 0, f"waited in vain for {data!r}"
                self.changed.wait(min(left, 0.5))

    def end(self):
        """Exit code and what was printed after the dashboard had left; the terminal has to be as it was."""
        code = self.process.wait(PATIENCE)
        assert termios.tcgetattr(self.theirs) == self.before
        self.wait_for_raw(b"\x1b[?1049l")
        assert self.raw.rfind(b"\x1b[?1049l") > self.raw.rfind(b"\x1b[?1049h")  # the alternate screen is left
        assert self.raw.rfind(b"\x1b[?25h") > self.raw.rfind(b"\x1b[?25l")  # the cursor is seen
        for mode in (b"1000", b"1003", b"1006", b"2004"):
            assert self.raw.rfind(b"\x1b[?" + mode + b"l") > self.raw.rfind(b"\x1b[?" + mode + b"h")
        tail = self.raw[self.raw.rfind(b"\x1b[?1049l") :].decode(errors="replace")
        return code, tail

    def close(self):
        for fd in {self.ours, self.theirs} - {-1}:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.ours = self.theirs = -1

    def dashboard(self):
        """The process that draws."""
        for child in psutil.Process(self.process.pid).children():
            if "erlcli.tui" in child.cmdline():
                return child
        raise AssertionError("no dashboard")


@pytest.fixture
def start(tmp_path):
    """Starts commands in terminals in `tmp_path`; whatever is left of them is ended."""
    terminals = []

    def begin(*arguments, **options):
        terminals.append(Terminal(*arguments, cwd=tmp_path, **options))
        return terminals[-1]

    yield begin
    for terminal in terminals:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()
        terminal.close()
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in part for part in process.info["cmdline"] or []):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.02)


def steps(layout):
    return json.loads(layout.status.read_text())["steps"]


def goes_on(layout):
    """Whether training makes progress."""
    before = steps(layout)
    wait_until(lambda: steps(layout) > before, "progress")
    return is_owned(layout.lock)


@pytest.fixture
def layout(tmp_path):
    return RunLayout(tmp_path / "runs" / "r")


def test_detach(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    terminal.send("q")
    terminal.wait_for("Detach")
    terminal.send("d")
    code, tail = terminal.end()
    assert code == 0
    assert "training in the background: runs/r" in tail and "erl watch runs/r" in tail
    assert goes_on(layout)


def test_cancel_then_stop(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    wait_until(lambda: layout.status.exists() and steps(layout) > 0, "training")
    terminal.send("q")
    terminal.wait_for("Detach")
    terminal.send("\x1b")
    wait_until(lambda: "Detach" not in terminal.text(), "the dialog to go")
    terminal.send("q")
    terminal.wait_for("Detach")
    terminal.send("s")
    code, tail = terminal.end()
    assert code == 130
    assert "interrupted:" in tail and "erl resume runs/r" in tail
    assert not is_owned(layout.lock)
    assert any(layout.checkpoints.glob("[0-9]*"))


def test_ctrl_c_twice_stops(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    wait_until(lambda: layout.status.exists() and steps(layout) > 0, "training")
    terminal.send("\x03")
    terminal.wait_for("Detach")
    terminal.send("\x03")
    assert terminal.end()[0] == 130
    assert not is_owned(layout.lock)


def test_killed_dashboard(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    terminal.dashboard().kill()
    code, tail = terminal.end()
    assert code == 1
    assert "SIGKILL" in tail and "erl watch runs/r" in tail
    assert goes_on(layout)


@pytest.mark.parametrize(
    "controlling",
    [
        pytest.param(True, id="of its session", marks=pytest.mark.slow),
        pytest.param(False, id="of another session"),
    ],
)
def test_closed_connection(start, layout, controlling):
    """With a hang-up signal, and without one: a terminal tells its own session alone."""
    terminal = start(*ENDLESS, "--name", "r", controlling=controlling)
    terminal.wait_for("CartPole-v1")
    pid = terminal.dashboard().pid
    terminal.close()
    terminal.process.wait(PATIENCE)
    wait_until(lambda: not psutil.pid_exists(pid), "the dashboard to leave")
    assert goes_on(layout)


def test_killed_parent(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    pid = terminal.dashboard().pid
    terminal.process.kill()
    wait_until(lambda: not psutil.pid_exists(pid), "the dashboard to leave")
    assert goes_on(layout)


def test_terminated_parent_saves_a_checkpoint(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    wait_until(lambda: layout.status.exists() and steps(layout) > 0, "training")
    terminal.process.send_signal(signal.SIGTERM)
    code, tail = terminal.end()
    assert code == 130 and "erl resume" in tail
    assert not is_owned(layout.lock)


def test_tiny_and_back(start, layout):
    terminal = start(*ENDLESS, "--name", "r")
    terminal.wait_for("CartPole-v1")
    for size in ((1, 1), (200, 60), (3, 40), (80, 24)):
        terminal.resize(*size)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.dashboard().send_signal(signal.SIGWINCH)
    terminal.wait_for("CartPole-v1")
    assert goes_on(layout)


def test_finished(start, layout):
    terminal = start("train", "cartpole_ppo", "--set", "train.total_steps=2048", "--name", "r")
    terminal.wait_for("finished")
    terminal.send("q")
    code, tail = terminal.end()
    assert code == 0
    assert "finished: " in tail and "erl eval runs/r" in tail


@pytest.mark.slow
def test_watch_attaches_again_and_again(start, layout, tmp_path):
    command = [sys.executable, "-m", "erlcli", *ENDLESS, "--name", "r", "--detach"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    for _ in range(2):
        terminal = start("watch", "runs/r")
        terminal.wait_for("CartPole-v1")
        terminal.dashboard().kill()
        terminal.end()
    terminal = start("watch")
    terminal.wait_for("CartPole-v1")
    terminal.send("q")
    code, _ = terminal.end()
    assert code == 0 and goes_on(layout)


def test_watch_without_a_terminal(tmp_path):
    (tmp_path / "runs").mkdir()
    done = subprocess.run([sys.executable, "-m", "erlcli", "watch"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "no terminal" in done.stderr and "erl ps" in done.stderr


def test_watch_on_what_is_no_run(tmp_path):
    (tmp_path / "file").touch()
    for path in ("file", "nowhere"):
        command = [sys.executable, "-m", "erlcli", "watch", path]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and path in done.stderr


NOISY = """
import ctypes, subprocess, sys
import gymnasium, numpy as np

class Noisy(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {}
    t = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        print("\\x1b[2J\\x1b[Hpython-stdout-word")
        print("python-stderr-word", file=sys.stderr)
        libc = ctypes.CDLL(None)
        libc.puts(b"c-stdout-word")
        libc.fflush(None)
        libc.perror(b"c-stderr-word")
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= 50, False, {}
"""


@pytest.mark.slow
def test_what_an_env_prints_never_paints_over_the_screen(start, layout, tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    (tmp_path / "noisy.toml").write_text(
        '[train]\ntotal_steps = 1_000_000_000\n[env]\nid = "./noisy.py:Noisy"\nnum_envs = 2\n'
        '[algorithm]\nname = "ppo"\nrollout_length = 64\nbatch_size = 64\n[engine]\nworkers = 2\ncompile = "off"\n'
    )
    terminal = start("train", "noisy.toml", "--name", "r")
    terminal.wait_for("word")  # in the log pane, whole and in its place
    wait_until(lambda: layout.status.exists() and steps(layout) > 0, "training")
    assert b"\x1b[2J\x1b[Hpython-stdout-word" not in terminal.raw
    for line in terminal.text().splitlines():
        assert not line.startswith(("python-", "c-std"))
    terminal.send("q")
    terminal.wait_for("Detach")
    terminal.send("s")
    assert terminal.end()[0] == 130
    printed = "".join(path.read_text() for path in (layout.root / "errors").glob("worker-*.log"))
    for words in ("python-stdout-word", "python-stderr-word", "c-stdout-word", "c-stderr-word"):
        assert words in printed
