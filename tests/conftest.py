"""Shared by all tests: one thread, so that results don't depend on the machine and parallel tests don't fight."""

import threading

import pytest
import torch

from erlcli.runs.writer import Heartbeat


def pytest_configure() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quiet_afterwards(monkeypatch: pytest.MonkeyPatch):
    """Ends the heartbeats that a test leaves: their thread would write through the next test's faulty disk."""
    begun, begin = [], Heartbeat.__init__

    def noted(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        begun.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(Heartbeat, "__init__", noted)
        yield
    for heart in begun:
        heart.close()


@pytest.fixture
def draws() -> torch.Generator:
    """A seeded source of random test data."""
    return torch.Generator().manual_seed(20_240_229)


@pytest.fixture
def together():
    """Runs `body(group)` in each member of a process group, by threads of this process: what they return, by rank."""

    def run_all(body, members=2):
        from torch.distributed import HashStore

        from erlcli.core.process_group import ProcessGroup

        store, results, errors = HashStore(), [None] * members, []

        def run(rank):
            try:
                results[rank] = body(ProcessGroup(store, rank, members, "lo"))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(members)]
        for thread in threads:
            thread.start()
        while not errors and (alive := [thread for thread in threads if thread.is_alive()]):
            alive[0].join(0.05)
        if errors:
            raise errors[0]
        return results

    return run_all
