"""Runs and tournaments to show: written once a session, never trained, always the same.

Tests that only read use `finished_run`, `failed_run`, `big_run`, `tournament` and `runs_folder` as they are. Live ones
(`fixed_run`, `live_tournament` and what `own` is called with) are owned by the test for as long as it lasts.
"""

import sys
from pathlib import Path

import pytest

from erlcli.runs.lock import RunLock

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import synthetic

CLOCK = synthetic.NOW  # the time at which every fixture is looked at


@pytest.fixture(scope="session")
def writer():
    """The module that writes synthetic runs: `writer.write_run`, `write_tournament`, `RunReplay` ..."""
    return synthetic


@pytest.fixture(scope="session")
def clock():
    """For `Dashboard(path, clock=clock)`: time stands still."""
    return lambda: CLOCK


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    """Where the session's runs lie; no test may write there."""
    return tmp_path_factory.mktemp("shelf")


@pytest.fixture
def own():
    """Takes the lock of run directories, so that they look live until the test ends."""
    locks = []

    def take(root):
        locks.append(RunLock.acquire(Path(root) / "lock"))

    yield take
    for lock in locks:
        lock.release()


@pytest.fixture
def fixed_run(tmp_path, own):
    """A live run with two workers, three attempts and a GPU, 620 of 1,000 rows done; free to be changed."""
    layout = synthetic.write_run(
        tmp_path / "bipedal_ppo", rows=620, state="running", attempts=3, workers=2, gpu=True, seed=7
    )
    own(layout.root)
    return layout


@pytest.fixture(scope="session")
def finished_run(shelf):
    """A run that reached its target an hour ago, in one attempt."""
    return synthetic.write_run(shelf / "finished", rows=500, seed=1)


@pytest.fixture(scope="session")
def failed_run(shelf):
    """A run that diverged at 45 %."""
    return synthetic.write_run(shelf / "failed", rows=225, state="failed", seed=2)


@pytest.fixture(scope="session")
def big_run(shelf):
    """100,000 rows over three attempts, dead."""
    return synthetic.write_run(shelf / "big", rows=100_000, state="dead", attempts=3, seed=3)


@pytest.fixture(scope="session")
def tournament(shelf):
    """A tournament of 10 members on 4 slots whose orchestrator was killed; each member has its run."""
    return synthetic.write_tournament(shelf / "tournament", members=12, seed=4)


@pytest.fixture
def live_tournament(tmp_path, own):
    """The same tournament, live, without its members' runs; free to be changed."""
    path = synthetic.write_tournament(tmp_path / "tournament", members=12, seed=4, member_rows=0)
    own(path)
    return path


@pytest.fixture
def runs_folder(tmp_path, own):
    """A folder of six runs, two of them live, and a finished tournament; free to be changed."""
    folder = tmp_path / "runs"
    write = synthetic.write_run
    write(folder / "bipedal_ppo", rows=300, seed=11, attempts=2, age_seconds=7_200)
    write(folder / "bipedal_ppo-2", rows=186, seed=12, state="running")
    write(folder / "cartpole_ppo", rows=120, seed=13, env="CartPole-v1", target=475.0, high=500.0, age_seconds=260_000)
    write(folder / "hopper_ppo", rows=90, seed=14, state="failed", env="Hopper-v5", target=3000.0, high=900.0)
    write(folder / "lunar_ppo", rows=110, seed=15, state="paused", env="LunarLander-v3", target=200.0, high=240.0)
    write(folder / "pendulum_ppo", rows=55, seed=16, state="dead", env="Pendulum-v1", target=-160.0, high=-150.0)
    synthetic.write_tournament(folder / "cup", members=8, seed=17, state="finished", member_rows=0, age_seconds=90_000)
    for name in ("bipedal_ppo-2", "lunar_ppo"):
        own(folder / name)
    return folder
