"""Reference: parameters that all workers hold alike, bit for bit, from which each measures what it sends rounded.

Rounding parameters themselves loses each update that is smaller than their last digit, and adds noise of the size of
the parameters. What a worker has added since all were together is as small as the updates, and so is what rounding
takes from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.commit import replace_where
from partreduce.topo.errors import InputError


@dataclass(slots=True)
class Reference:
    """One array for each bucket, with the place in the run where all workers took it.

    `starts` counts how often the run began from one model: at first, and after every load. `round` is that of the last
    mean over all since then, -1 where there was none.
    """

    arrays: list[torch.Tensor]
    starts: int
    round: int = -1

    @property
    def version(self) -> str:
        """What tells this reference from every other one of the run; it belongs into the tag of what is sent."""
        return f"reference {self.starts}/{self.round}"

    def __str__(self) -> str:
        return f"the mean of round {self.round}" if self.round >= 0 else f"the model of start {self.starts}"

    def complete(self, index: int, change: torch.Tensor) -> None:
        """Make the mean of one bucket of the mean of what was added since, in place."""
        change.add_(self.arrays[index])

    def take(self, index: int, mean: torch.Tensor, ok: torch.Tensor | None) -> None:
        """Let a mean over all workers be the reference of one bucket, unless the device's check says otherwise."""
        replace_where(self.arrays[index], mean, ok)

    def state(self) -> dict[str, torch.Tensor]:
        """Arrays and place by name, for checkpoints."""
        named = {f"reference/{index}": array for index, array in enumerate(self.arrays)}
        return named | {"reference/place": torch.tensor([self.starts, self.round])}

    @classmethod
    def restored(cls, state: Mapping[str, torch.Tensor], buckets: Sequence[Bucket]) -> Reference:
        """What `state` gave.

        Raises:
            InputError: it is another strategy's.
        """
        names = [f"reference/{index}" for index in range(len(buckets))]
        if set(state) != {*names, "reference/place"}:
            raise InputError(f"load_checkpoint: the file holds {', '.join(sorted(state))} instead of a reference")
        arrays = [state[name].to(bucket.device, copy=True) for name, bucket in zip(names, buckets, strict=True)]
        starts, round_ = map(int, state["reference/place"])
        return cls(arrays, starts, round_)
