"""Shared by all tests: one thread, so that results don't depend on the machine and parallel tests don't fight."""

import pytest
import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def draws() -> torch.Generator:
    """A seeded source of random test data."""
    return torch.Generator().manual_seed(20_240_229)
