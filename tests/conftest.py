"""Shared by all tests: one thread, so that results don't depend on the machine and parallel tests don't fight."""

import threading

import pytest
import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)


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
