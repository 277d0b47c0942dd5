"""Waits inside the library: they have a limit, end when the operation does, and keep an error for who waits."""

import threading
import time

import pytest
import torch

from preduce.runtime.codecs.coding import Coding
from preduce.runtime.transport.communicators import HostWork, LimitedShortWork
from preduce.runtime.transport.waiting import LimitedWork, wait_a_while
from preduce.topo.strategies.axes import Codec, How

STARTS = {
    "all_reduce": lambda group: group.all_reduce(torch.ones(4)),
    "broadcast": lambda group: group.broadcast(torch.ones(4)),
    "all_to_all": lambda group: group.all_to_all(torch.empty(2), torch.ones(2), [1, 1], [1, 1]),
    "all_gather": lambda group: group.all_gather(torch.empty(8), torch.ones(4)),
}


def group_of(world):
    """Both workers' group; one world makes it once."""
    members = (0, 1)
    return world.communicator(members) if world.has(members) else world.create(members)


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("seconds", [0.0, 1e-5, 0.02])
def test_a_wait_has_a_limit_and_the_operation_goes_on(ranks, name, seconds):
    """Worker 0 starts and waits in vain, a limit of nothing included, which to torch is none; then worker 1 comes."""
    may_come = threading.Event()

    def run(world):
        group = group_of(world)
        if world.rank == 1:
            may_come.wait(20)
        work = STARTS[name](group)
        assert isinstance(work, HostWork)
        in_vain = None
        if world.rank == 0:
            in_vain = name != "broadcast" and work.ended_within(seconds)
            may_come.set()
        assert work.ended_within(20)
        work.wait()
        return in_vain

    assert ranks.run(2, run) == [False, None]


def test_a_wait_ends_when_the_operation_does(ranks):
    """Not after its limit of 20 s, nor at a look that comes late."""

    def run(world):
        group = group_of(world)
        if world.rank == 1:
            time.sleep(0.2)
        work, begun = group.all_reduce(torch.ones(1)), time.monotonic()
        wait_a_while(work, 20.0, 0.0)
        return work.is_completed(), time.monotonic() - begun

    found = ranks.run(2, run)
    assert all(done for done, _ in found)
    assert found[0][1] < 10


def test_an_operation_that_failed_has_ended_and_raises_whenever_it_is_waited_for(ranks):
    def run(world):
        group = group_of(world)
        if world.rank == 1:
            world.abandon()
            return None
        work = group.all_reduce(torch.ones(1))
        assert work.ended_within(20)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                work.wait()
        return isinstance(work, LimitedWork)

    found = ranks.run(2, run)
    ranks.fresh()
    assert found == [True, None]


def test_a_sum_in_sixteen_bits_waits_as_its_sum_does(ranks):
    def run(world):
        tensor = torch.full((3,), 1.0 + world.rank)
        work = group_of(world).all_reduce(tensor, Coding(How(codec=Codec.FLOAT16), (0, 0)))
        assert isinstance(work, LimitedShortWork)
        assert work.ended_within(20)
        work.wait()
        return tensor.tolist()

    assert ranks.run(2, run) == [[3.0] * 3] * 2
