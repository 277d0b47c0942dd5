"""Train workers that follow a schedule in one process, in the order of its updates, without network and clock.

`training` has `models` (workers, numbers), `count`, `take(counts)`, `loss(model)` and the `named` sizes of its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from partreduce.runtime.codecs import BlockCodec
from partreduce.topo.codec_numbers import block_bytes
from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.base import Averaging
from partreduce.topo.strategies.payload import assign, moves

if TYPE_CHECKING:
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.axes import Transport

EVERY = 4


def by_turns(training: Any, schedule: Schedule) -> Callable[[int], None]:
    """Return a function that takes steps of a schedule with outer steps or fragments, with equal steps per round."""
    strategy, steps_per_round = schedule.strategy, schedule.steps_per_round_of(0)
    matrices = [
        torch.from_numpy(mixing_matrix(strategy.phase(t, schedule.cluster))).float() for t in range(strategy.period)
    ]
    count, numbers = strategy.payload.num_fragments, numbers_of(training, schedule)
    parts = [_Part(training, numbers == fragment, schedule) for fragment in range(count)]
    due = moves(count, steps_per_round, strategy.sync.late_steps)

    def advance(step: int) -> None:
        training.take([1] * training.count)
        matrix = matrices[step // steps_per_round % len(matrices)]
        for move in due:
            if step % steps_per_round + 1 == move.taken and move.merges:
                parts[move.fragment].merge(float(strategy.sync.kept))
            elif step % steps_per_round + 1 == move.taken:
                parts[move.fragment].send(matrix)

    return advance


def numbers_of(training: Any, schedule: Schedule) -> torch.Tensor:
    named: list[tuple[str, int]] = training.named
    found = assign(schedule.strategy.payload.fragments, [((name,), size) for name, size in named])
    return torch.repeat_interleave(torch.tensor(found), torch.tensor([size for _, size in named]))


class _Part:
    """One fragment of all workers' models, with each worker's outer parameters and momentum.

    All arrays have shape (workers, numbers).
    """

    def __init__(self, training: Any, mine: torch.Tensor, schedule: Schedule) -> None:
        places = mine.nonzero().flatten()
        first, end = int(places[0]), int(places[-1]) + 1
        self._mine = slice(first, end) if end - first == len(places) else mine  # a slice needs no copy
        self._training, self._outer = training, schedule.strategy.payload.outer
        self._coded = CodedMean.of(schedule)
        self._outer_params = training.models[:, self._mine].clone()
        self._momenta = torch.zeros_like(self._outer_params)
        self._sent: torch.Tensor | None = None

    def send(self, matrix: torch.Tensor) -> None:
        """Compute the groups' means, and which workers make an outer step.

        They are the members of a group of all workers, or of any group with each worker's own outer parameters.
        """
        models = self._training.models[:, self._mine]
        if self._coded is None or not (matrix > 0).all():  # codes travel between nodes, and smaller groups are inside
            self._sent = matrix @ models
        else:
            self._sent = self._outer_params + self._coded.mean(models - self._outer_params)
        meets = matrix.diagonal() < 1
        self._steps = (meets & ((matrix > 0).all() | torch.tensor(self._outer.has_own_outer_params)))[:, None]

    def merge(self, kept: float) -> None:
        if self._sent is None:  # the first round may merge what no round has sent
            return
        coming, mine = (self._step(self._sent) if self._steps.any() else self._sent), self._mine
        if kept:
            coming = kept * self._training.models[:, mine] + (1 - kept) * coming
        self._training.models[:, mine] = coming

    def _step(self, sent: torch.Tensor) -> torch.Tensor:
        """Return the new models: after an outer step for workers that make one, else the means."""
        moved, momentum = sent - self._outer_params, float(self._outer.momentum)
        following = momentum * self._momenta + moved
        change = moved + momentum * following if self._outer.nesterov else following
        self._momenta = torch.where(self._steps, following, self._momenta)
        self._outer_params = torch.where(
            self._steps, self._outer_params + float(self._outer.lr) * change, self._outer_params
        )
        return torch.where(self._steps, self._outer_params, sent)


class CodedMean:
    """Means of all workers as the runtime computes them: encoded sums of nodes are added, and the sum is encoded.

    Without sums inside nodes each worker's own change is encoded. With error feedback rounding errors are added to the
    next sum.
    """

    def __init__(self, transport: Transport, cluster: Cluster) -> None:
        self._transport, self._count = transport, cluster.num_workers
        self._each = cluster.workers_per_node if transport.algorithm is AllReduceAlgorithm.HIERARCHICAL else 1
        self._codec = BlockCodec(str(transport.codec), transport.block)
        self._left: list[torch.Tensor | None] = [None] * (self._count + 1)

    @classmethod
    def of(cls, schedule: Schedule) -> CodedMean | None:
        """Return the means of a schedule; None without a codec."""
        transport = schedule.strategy.transport
        return cls(transport, schedule.cluster) if transport.codec.has_blocks else None

    def mean(self, moved: torch.Tensor) -> torch.Tensor:
        """Return the mean, shape (numbers,), of changes (workers, numbers)."""
        parts = moved.view(self._count // self._each, self._each, -1).sum(1)
        total = torch.stack([self._rounded(part, place) for place, part in enumerate(parts)]).sum(0)
        return self._rounded(total, self._count) / self._count

    def _rounded(self, values: torch.Tensor, place: int) -> torch.Tensor:
        left = self._left[place]
        if left is not None:
            values = values + left
        code = torch.empty(
            block_bytes(str(self._transport.codec), len(values), self._transport.block), dtype=torch.uint8
        )
        decoded = torch.empty_like(values)
        self._codec.encode(values, code)
        self._codec.decode(code, decoded)
        if self._transport.error_feedback:
            self._left[place] = values - decoded
        return decoded


def steps_to(
    target: float, training: Any, advance: Callable[[int], None], most: int, *, every: int = EVERY
) -> float | None:
    """Return the steps until the mean model's interpolated loss falls to the target; None if it does not.

    `advance(step)` takes one step of every worker.
    """
    before = training.loss(training.models.mean(0))
    for step in range(1, most + 1):
        advance(step - 1)
        if step % every:
            continue
        loss = training.loss(training.models.mean(0))
        if not np.isfinite(loss):
            return None
        if loss <= target:
            return round(step - every + every * (before - target) / (before - loss), 2)
        before = loss
    return None


def by_schedule(training: Any, schedule: Schedule) -> Callable[[int], None]:
    """Return a function that takes steps of a schedule with fixed phases."""
    matrices = [torch.from_numpy(mixing_matrix(step)).float() for step in schedule.steps()]
    overlap = schedule.strategy.mixes_late
    worker_steps = schedule.worker_steps()
    longest = int(worker_steps.max())
    normalized = schedule.strategy.averaging is Averaging.STEP_NORMALIZED
    factors = torch.tensor(
        float(worker_steps.mean()) / worker_steps if normalized else np.ones(len(worker_steps))
    ).float()[:, None]
    begun = training.models.clone()  # the models when the round began

    def advance(step: int) -> None:
        training.take(schedule.stepping_at(step).tolist())
        models = training.models
        if (step + 1) % longest:
            return
        matrix = matrices[step // longest % len(matrices)]
        if normalized:
            models.sub_(begun).mul_(factors).add_(begun)
        if overlap:
            models += matrix @ begun - begun
        else:
            torch.mm(matrix, models.clone(), out=models)
        if normalized or overlap:
            begun.copy_(models)

    return advance
