"""The mean model: what is evaluated, saved and kept at the end is the mean over all workers, never one worker's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from preduce.runtime.averaging.commit import commit_mean, commit_riders
from preduce.topo.phase import Group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from preduce.runtime.strategies.base import Run, Strategy


def average_everywhere(run: Run, step: int, round_: int, members: tuple[int, ...] | None = None) -> None:
    """Replace every worker's parameters and floating-point buffers by their means over all workers, or over `members`.

    Raises:
        PeerLostError: a worker is gone, or at another round.
    """
    everyone = Group(members or tuple(range(run.schedule.num_workers)))
    for reducer in run.mean_reducers:
        reduction = reducer.begin("mean model", step, round_, everyone)
        reducer.wait(reduction)
        with torch.no_grad():
            for lane in reducer.lanes:
                with reducer.stream(lane.device):
                    commit_mean(lane, 1.0, reduction.ok)
                    commit_riders(lane, reduction.ok)
        reducer.rejoin()


@contextmanager
def mean_of_all(run: Run, strategy: Strategy, step: int, round_: int) -> Iterator[torch.nn.Module]:
    """The model with the mean's values inside, and with this worker's own values again afterwards."""
    strategy.settle()
    tensors = [lane.flat for lane in run.flat.lanes] + [p.detach() for p in run.flat.frozen] + run.flat.buffers()
    with torch.no_grad():
        own = [tensor.clone() for tensor in tensors]
    states = [
        (value, value.clone())
        for lane in run.flat.lanes
        for rider in lane.riders
        if ":" in rider.name and (value := rider.fetch()) is not None
    ]
    run.reducer.watch.gather("mean_model()", round_)
    survivors = getattr(strategy, "survivors", None)
    average_everywhere(run, step, round_, None if survivors is None else survivors("mean_model()"))
    try:
        yield run.flat.model
    finally:
        with torch.no_grad():
            current = [lane.flat for lane in run.flat.lanes] + [p.detach() for p in run.flat.frozen]
            for tensor, value in zip(current + run.flat.buffers(), own, strict=True):
                tensor.copy_(value)
            for tensor, value in states:
                tensor.copy_(value)
