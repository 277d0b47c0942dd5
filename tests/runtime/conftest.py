"""Fixtures of the runtime's tests."""

import pytest
import torch
import torch.distributed as dist

from helpers.driver import Driver
from helpers.thread_ranks import ThreadRanks
from partreduce.runtime.sharding import table


@pytest.fixture(scope="module")
def ranks():
    """Ranks as threads of this process, with separate worlds for each test file."""
    made = ThreadRanks(12)
    yield made
    made.close()


@pytest.fixture(scope="module")
def driver(request):
    """A process that forks the workers of the scenarios in the test file's `SCENARIOS` module."""
    started = Driver(request.module.SCENARIOS)
    yield started
    started.close()


@pytest.fixture(scope="module")
def group():
    """A default process group of this process alone, which torch's wrappers need."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def one_thread():
    """Let torch compute in one thread, so that it does not delay the threads of a simulated device."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def small_blocks(monkeypatch):
    """Move tables of `hybrid_runs` in several blocks with a shorter last one, as large tables are."""
    monkeypatch.setattr(table, "BLOCK_BYTES", 448)
