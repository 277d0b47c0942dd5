"""Commit: how the sums of a finished reduction become parameters or gradients.

Every function takes `ok`: None on CPU, where the tags were checked before, or a 0-d bool tensor on CUDA; with False
nothing changes. So the device decides, and the host never waits inside a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from preduce.runtime.averaging.flat_model import Lane


def commit_mean(lane: Lane, relax: float, ok: torch.Tensor | None, *, swap: bool = False) -> None:
    """Commit x ← x + relax · (mean − x).

    With `swap`, relax 1 and no `ok` nothing is copied: the array with the mean becomes the parameters' storage and the
    old one the next scratch array.
    """
    mean, live = lane.scratch()[: lane.size], lane.flat
    if relax != 1:
        torch.lerp(live, mean, relax, out=mean if ok is not None else live)
        if ok is None:
            return
    elif swap and ok is None:
        lane.swap()
        return
    _replace(live, mean, ok)


def commit_delayed(lane: Lane, snapshot: torch.Tensor, relax: float, ok: torch.Tensor | None) -> None:
    """Commit x ← x + relax · (mean of snapshots − own snapshot): what was learned since the snapshot stays."""
    change, live = lane.scratch()[: lane.size], lane.flat
    change.sub_(snapshot[: lane.size])
    if ok is not None:
        change.mul_(ok)
    live.add_(change, alpha=relax)


def rescale_progress(lane: Lane, start: torch.Tensor, factor: float) -> None:
    """Commit x ← start + factor · (x − start): what a round learned, counted as if all members had the same pace."""
    lane.flat.sub_(start[: lane.size]).mul_(factor).add_(start[: lane.size])


def snapshot_riders(lane: Lane) -> list[torch.Tensor | None]:
    """Copies of what rides along, None where there is nothing yet."""
    values = (rider.fetch() for rider in lane.riders)
    return [None if value is None else value.detach().clone() for value in values]


def commit_riders(lane: Lane, ok: torch.Tensor | None, before: list[torch.Tensor | None] | None = None) -> None:
    """Write averaged buffers and optimizer state back; with `before` what changed since that snapshot stays."""
    scratch = lane.scratch()
    for index, rider in enumerate(lane.riders):
        value = rider.fetch()
        if value is None:
            continue
        new = rider.view(scratch)
        old = before[index] if before is not None else None
        if old is not None:
            new = new + (value - old)
            if rider.name.endswith("running_var"):
                new = new.clamp_min(0)  # a variance stays one
        _replace(value, new, ok)


def commit_gradients(lane: Lane, ok: torch.Tensor | None) -> None:
    """Each parameter's gradient becomes the mean over the group, as a view of the scratch array.

    A parameter without gradient on every member keeps none; one without gradient here only counts as zero here.
    """
    scratch = lane.scratch()
    means = scratch[: lane.size]
    if ok is not None:
        means.mul_(ok)
    presence: list[float] | None = None
    for index, slot in enumerate(lane.slots):
        if slot.parameter.grad is None:
            if presence is None:
                presence = scratch[lane.tail : lane.tail + len(lane.slots)].tolist()
            if presence[index] == 0:
                continue
        slot.parameter.grad = slot.view(scratch)


def _replace(live: torch.Tensor, new: torch.Tensor, ok: torch.Tensor | None) -> None:
    if ok is None:
        live.copy_(new)
    else:
        live.copy_(torch.where(ok, new, live))
