"""Fixtures of the run-time's tests."""

import pytest
import torch
import torch.distributed as dist

from helpers.driver import Driver
from helpers.thread_ranks import ThreadRanks
from partreduce.runtime.sharding import table


@pytest.fixture(scope="module")
def ranks():
    """Ranks as threads of this process, with worlds of their own for each file of tests."""
    made = ThreadRanks(12)
    yield made
    made.close()


@pytest.fixture(scope="module")
def driver(request):
    """Forks the workers of scenarios: of the module that a file of tests names."""
    started = Driver(request.module.SCENARIOS)
    yield started
    started.close()


@pytest.fixture(scope="module")
def group():
    """A default process group of this process alone, which torch's wrappers want."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def one_thread():
    """Torch computes in one thread, so that a pretended device's threads are not held up by it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_blocks(monkeypatch):
    """Tables of `hybrid_runs` move in several blocks, of which the last is shorter, as large ones do."""
    monkeypatch.setattr(table, "BLOCK_BYTES", 448)
