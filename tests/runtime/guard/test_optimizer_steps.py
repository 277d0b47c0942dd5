"""Optimizers of many threads step while others begin and end to watch: each looks at all that watch."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from partreduce.runtime.guard.guard import Guard
from partreduce.topo.strategies import AllReduce

THREADS, ROUNDS = 8, 200


@pytest.fixture
def _switching():
    """Threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def watching(own):
    """The guard of a run of which nothing is asked but whether it is at work."""
    model = torch.nn.Module()
    flat = SimpleNamespace(slots=list, buckets=[], apart={}, frozen_names={}, model=model, named_frozen=list)
    flat.sharders = SimpleNamespace(shards=False)
    run = SimpleNamespace(
        alone=False,
        rank=0,
        applier=SimpleNamespace(is_stepping=False),
        flat=flat,
        progress=SimpleNamespace(step=1),
        tables=(),
        schedule=SimpleNamespace(strategy=AllReduce()),
        traits=SimpleNamespace(averages_gradients=True, measures_from_start=False),
    )
    return Guard(
        SimpleNamespace(
            run=run, optimizer=own, differs=False, has_local_gradients=True,
            runner=SimpleNamespace(),
        )
    )  # fmt: skip


@pytest.mark.usefixtures("_switching")
def test_threads_begin_and_end_to_watch_while_others_step():
    failures = []

    def work():
        parameter = torch.nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        own, other = (torch.optim.SGD([parameter], 0.1) for _ in range(2))
        try:
            for _ in range(ROUNDS):
                watch = watching(own)
                watch.attach()
                other.step()
                watch.after_step()
                watch.detach()
        except RuntimeError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
