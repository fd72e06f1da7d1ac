"""Processes forked off one that has imported PyTorch: they are what a command would have started, but sooner."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import psutil
import pytest

from erlcli.engine import forks
from erlcli.engine.forkserver import Server

pytestmark = pytest.mark.skipif(not forks.possible(), reason="no forks on this system")
PATIENCE = 60.0


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module that a fork can be of, from the body of its `main(arguments)`."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.chdir(folder)  # as for a user's own code, the current folder is where forks look first

    def make(body, name="forked"):
        body = textwrap.indent(textwrap.dedent(body), "    ")
        text = f"import json, os, signal, sys\n\ndef main(arguments):\n{body}\n    return 0\n"
        (folder / f"{name}.py").write_text(text)
        return name

    return make


@pytest.fixture
def start(tmp_path):
    """Starts a fork; its output is in `log`. Ends it, if need be."""
    started = []

    def start(module, *arguments, fds=(), environment=None):
        with (tmp_path / "log").open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"} if environment is None else environment
            fork = forks.fork(module, list(arguments), environment, log.fileno(), fds)
        started.append(fork)
        return fork

    start.log = tmp_path / "log"
    yield start
    for fork in started:
        if fork.poll() is None:
            fork.send_signal(signal.SIGKILL)


def test_it_is_what_a_command_would_have_started(module, start, tmp_path):
    """Arguments, variables, folder, session, command line, output and exit code."""
    name = module("""
        variables = [os.environ.get("MINE"), os.environ.get("HOME")]
        print(json.dumps([arguments, variables, os.getcwd(), os.getsid(0) == os.getpid()]))
        print(json.dumps(sys.argv))
        print(json.dumps([a for a in open("/proc/self/cmdline").read().split(chr(0)) if a]))
        return 7
    """)
    fork = start(name, "a b", "ü", environment={"MINE": "1", "OMP_NUM_THREADS": "1"})
    assert fork.wait(PATIENCE) == 7
    told, argv, command = map(json.loads, start.log.read_text().splitlines())
    assert told == [["a b", "ü"], ["1", None], str(tmp_path / "modules"), True]
    assert argv == [str(tmp_path / "modules" / "forked.py"), "a b", "ü"]
    assert command == [sys.executable, "-m", name, "a b", "ü"]


def test_it_has_the_file_descriptors_that_it_was_given_under_their_numbers_and_no_others(module, start):
    name = module("""
        for number in arguments:
            print(os.read(int(number), 10).decode())
        import re
        print(sorted(int(n) for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")))
    """)
    pipes = [os.pipe() for _ in range(5)]
    for index, (_, writing) in enumerate(pipes):
        os.write(writing, f"pipe {index}".encode())
    readings = [reading for reading, _ in pipes][::-1]  # numbers that copies of others might lie on
    fork = start(name, *map(str, readings), fds=readings)
    assert fork.wait(PATIENCE) == 0
    *words, numbers = start.log.read_text().splitlines()
    assert words == [f"pipe {index}" for index in (4, 3, 2, 1, 0)]
    known = {0, 1, 2, *readings}
    assert known <= set(json.loads(numbers)) and len(json.loads(numbers)) == len(known) + 1  # its own channel
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_forks_that_are_asked_for_together_hold_nothing_of_each_other(module):
    """The server takes both requests at once: a pipe of the second has to end with the second."""
    module("signal.pause()", "sleeper")
    name = module("return 0", "leaver")
    text = f"""
import os
from erlcli.engine import forks
environment, pipes = os.environ | {{"OMP_NUM_THREADS": "1"}}, [os.pipe(), os.pipe()]
sleeper, leaver = (
    forks.fork(name, [], environment, 2, [writing])
    for name, (_, writing) in zip(["sleeper", "{name}"], pipes)
)
for _, writing in pipes:
    os.close(writing)
assert leaver.wait(60.0) == 0
print(sleeper.pid, flush=True)
print("ended" if os.read(pipes[1][0], 1) == b"" else "not")
sleeper.send_signal(9)
"""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.communicate(timeout=PATIENCE)[0].split()[-1] == "ended"
        except subprocess.TimeoutExpired:
            owner.kill()
            raise


def test_forks_draw_different_numbers(module, start):
    name = module("""
        import random, numpy
        print(random.random(), numpy.random.rand())
    """)
    assert [start(name).wait(PATIENCE) for _ in range(2)] == [0, 0]
    first, second = (line.split() for line in start.log.read_text().splitlines())
    assert not set(first) & set(second)


def test_a_signal_is_the_exit_code(module, start):
    fork = start(module("signal.pause()"))
    assert fork.pid > 0 and fork.poll() is None
    assert fork.wait(0.0) is None
    os.kill(fork.pid, signal.SIGSEGV)
    assert fork.wait(PATIENCE) == -signal.SIGSEGV


def test_what_it_raises_is_in_its_output(module, start):
    fork = start(module("raise ValueError('on purpose')"))
    assert fork.wait(PATIENCE) == 1
    assert "ValueError: on purpose" in start.log.read_text()


def test_a_fork_asks_the_same_server(module, start):
    """As a learner for its workers: both are children of one process, and each learns of its own alone."""
    module("print('grandchild', os.getppid()); return 3", "grandchild")
    name = module("""
        from erlcli.engine import forks
        fork = forks.fork("grandchild", [], os.environ, 1)
        print("child", fork.wait(60.0), os.getppid())
    """)
    assert start(name).wait(PATIENCE) == 0
    (first, server), (second, code, same) = (line.split() for line in start.log.read_text().splitlines())
    assert (first, second, code, server) == ("grandchild", "child", "3", same)


def test_a_fork_outlives_who_asked_for_it_and_the_server_goes_on(module, start):
    """The answer about its end has nobody to go to."""
    reading, writing = os.pipe()
    module("os.read(int(arguments[0]), 1)", "orphan")
    name = module("""
        from erlcli.engine import forks
        print(forks.fork("orphan", arguments, os.environ, 1, [int(arguments[0])]).pid)
    """)
    assert start(name, str(reading), fds=[reading]).wait(PATIENCE) == 0
    orphan = psutil.Process(int(start.log.read_text()))
    os.close(writing), os.close(reading)
    orphan.wait(PATIENCE)
    assert start(module("return 5", "next")).wait(PATIENCE) == 5


def test_a_dead_server_is_told_as_dead_forks_and_replaced(module, start):
    name = module("signal.pause()")
    forked = [start(name), start(name)]
    processes = [psutil.Process(fork.pid) for fork in forked]
    server = processes[0].parent()
    assert server.num_threads() == 1  # or forks would not be safe
    server.kill()
    assert [fork.wait(PATIENCE) for fork in forked] == [-signal.SIGKILL] * 2
    assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
    assert start(module("return 4", "next")).wait(PATIENCE) == 4


OWNER = """
import os, sys
from erlcli.engine import forks
print(forks.fork("sleeper", [], os.environ | {"OMP_NUM_THREADS": "1"}, 2).pid, flush=True)
input()
sys.exit(0) if sys.argv[1] == "exits" else os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["exits", "is killed"])
def test_the_server_leaves_with_its_owner(module, end):
    module("signal.pause()", "sleeper")
    command = [sys.executable, "-c", OWNER, end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        fork = psutil.Process(int(owner.stdout.readline()))
        server = fork.parent()
        owner.stdin.write(b"\n")
        owner.stdin.close()
        server.wait(PATIENCE)
        fork.kill()  # the engine's own watch their lifelines


HEIR = """
import os, psutil
from erlcli.engine import forks
forks.adopt()
assert forks.CHANNEL not in os.environ
fork = forks.fork("sleeper", [], os.environ | {"OMP_NUM_THREADS": "1"}, 2)
print(fork.pid, psutil.Process(fork.pid).ppid(), flush=True)
input()
fork.send_signal(9)
"""
FORERUNNER = f"""
import os, subprocess, sys
from erlcli.engine import forks
forks.warm_up(os.environ | {{"OMP_NUM_THREADS": "1"}})
channel = forks.hand_on()
environment = os.environ | {{forks.CHANNEL: str(channel)}}
heir = subprocess.Popen([sys.executable, "-c", {HEIR!r}], pass_fds=(channel,), env=environment)
os.close(channel)
print(os.getpid(), flush=True)
if sys.argv[1] == "stays":
    heir.wait()
"""


@pytest.mark.parametrize("forerunner", ["stays", "leaves"])
def test_a_server_that_is_handed_on_serves_its_heir_and_leaves_with_it(module, forerunner):
    module("signal.pause()", "sleeper")
    command = [sys.executable, "-c", FORERUNNER, forerunner]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        first = int(owner.stdout.readline())
        pid, parent = map(int, owner.stdout.readline().split())
        server = psutil.Process(parent)
        assert "forkserver" in " ".join(server.cmdline()) and psutil.pid_exists(pid)
        if forerunner == "stays":
            assert server.ppid() == first
        owner.stdin.write(b"\n")
        owner.stdin.close()
        server.wait(PATIENCE)


def test_a_server_that_is_dismissed_leaves_while_who_started_it_goes_on():
    text = """
import os, psutil
from erlcli.engine import forks
forks.warm_up(os.environ | {"OMP_NUM_THREADS": "1"})
(server,) = psutil.Process().children()
forks.dismiss()
server.wait(60.0)
forks.dismiss()
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=2 * PATIENCE)


def test_without_a_server_there_is_nothing_to_hand_on():
    text = "from erlcli.engine import forks; forks.adopt(); print(forks.hand_on())"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"


def test_a_request_taken_back_in_time_is_never_carried_out(tmp_path):
    """While the server still imports; what it was given is closed, or its pipes would never end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    row = {"order": 1, "module": "os", "arguments": [], "environment": {}, "cwd": None, "fds": [writing]}
    with open(os.devnull, "wb") as log:
        socket.send_fds(ours, [json.dumps(row).encode()], [log.fileno(), writing])
    ours.send(json.dumps({"cancel": 1}).encode())
    os.close(writing)
    ours.shutdown(socket.SHUT_WR)
    assert Server(theirs).serve() is None  # a fork would return its task
    assert json.loads(ours.recv(1000)) == {"order": 1, "code": -signal.SIGKILL}
    assert os.read(reading, 1) == b""


def test_a_child_that_is_ended_before_its_birth_never_works(tmp_path):
    """In a process of its own, whose server still imports."""
    text = f"""
import os, pathlib
from erlcli.engine.child import Child
child = Child.spawn("learner", "sleeper", [], pathlib.Path({str(tmp_path / "log")!r}))
child.end()
print(child.is_born, child.poll())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split()[0] == "False", done.stderr
    assert not (tmp_path / "log").read_text()


def test_the_command_line_of_a_longer_command_is_cut():
    text = """
from erlcli.engine.forks import show_as
show_as(["x" * 10_000])
print(open("/proc/self/cmdline").read())
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert set(done.stdout.strip().rstrip("\0")) == {"x"}


def test_a_signal_to_all_of_a_job_is_for_those_that_have_something_to_save(module, start):
    """As batch systems send it: the server dies of none, or nobody could be waited for."""
    name = module("""
        signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True))
        print("ready", flush=True)
        signal.pause()
        return 3
    """)
    fork = start(name)
    server = psutil.Process(fork.pid).parent()
    while "ready" not in start.log.read_text():
        assert fork.wait(0.05) is None
    for process in (server, psutil.Process(fork.pid)):
        process.terminate()
    assert fork.wait(PATIENCE) == 3
    assert start.log.read_text().split() == ["ready", "saved"]
    assert server.is_running()
    default = start(module("signal.pause()", "default"))  # what a command would do of it
    os.kill(default.pid, signal.SIGTERM)
    assert default.wait(PATIENCE) == -signal.SIGTERM


def test_more_can_be_asked_for_than_fits_while_the_server_imports(module, start):
    """Each request carries the whole environment, which may be large."""
    name = module("return int(arguments[0])")
    large = os.environ | {"OMP_NUM_THREADS": "1", "MUCH": "x" * 40_000}
    forked = [start(name, str(i), environment=large) for i in range(12)]
    assert [fork.wait(PATIENCE) for fork in forked] == list(range(12))
