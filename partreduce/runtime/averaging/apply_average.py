"""Copy the sums of a finished reduction from its bucket's array into the parameters.

Every function takes `ok`: None on CPU, where the tags were checked before, or a 0-d bool tensor on CUDA; with False
nothing changes. The check is made on the device, so the host never waits inside a step.
"""

from __future__ import annotations

import torch

from partreduce.runtime.averaging.bucket import Bucket


def commit_mean(
    bucket: Bucket, sums: torch.Tensor, relaxation: float, ok: torch.Tensor | None, *, swap: bool = False
) -> None:
    """Commit x ← x + relaxation · (mean − x).

    With `swap`, relaxation 1 and no `ok` nothing is copied: the array with the mean becomes the parameters' storage,
    and the old one is lent to a later operation.
    """
    mean, live = sums[: bucket.size], bucket.flat
    if relaxation != 1:
        torch.lerp(live, mean, relaxation, out=mean if ok is not None else live)
        if ok is None:
            return
    elif swap and ok is None:
        bucket.swap(sums)
        return
    replace_where(live, mean, ok)


def commit_delayed(
    bucket: Bucket, sums: torch.Tensor, snapshot: torch.Tensor, relaxation: float, ok: torch.Tensor | None
) -> None:
    """Commit x ← x + relaxation · (mean of snapshots − own snapshot): what was learned since the snapshot stays."""
    change, live = sums[: bucket.size], bucket.flat
    change.sub_(snapshot[: bucket.size])
    if ok is not None:
        only_where(change, ok)
    live.add_(change, alpha=relaxation)


def rescale_progress(bucket: Bucket, start: torch.Tensor, factor: float) -> None:
    """Commit x ← start + factor · (x − start): what a round learned, scaled to a common number of steps per round."""
    bucket.flat.sub_(start[: bucket.size]).mul_(factor).add_(start[: bucket.size])


def replace_where(live: torch.Tensor, new: torch.Tensor, ok: torch.Tensor | None) -> None:
    """Write new values over the live ones, unless the device's check says otherwise."""
    if ok is None:
        live.copy_(new)
    else:
        torch.where(ok, new, live, out=live)


def only_where(values: torch.Tensor, ok: torch.Tensor) -> None:
    """Make values zero if the check is false; a product would leave NaN and infinity as they are."""
    torch.where(ok, values, values.new_zeros(()), out=values)
