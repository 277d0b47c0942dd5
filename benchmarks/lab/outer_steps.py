"""Outer steps in the lab: how they are rehearsed, whole or in fragments that take turns and are merged late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.strategies.fragments import assign, moves

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.outer import Outer


def by_turns(rehearsal: Any, schedule: Schedule) -> Callable[[int], None]:  # noqa: ANN401 - as rehearse.by_schedule
    """The steps of a schedule with outer steps or fragments, at one pace for all."""
    strategy, pace = schedule.strategy, schedule.pace_of(0)
    matrices = [
        torch.from_numpy(mixing_matrix(strategy.phase(t, schedule.cluster))).float() for t in range(strategy.period)
    ]
    count, numbers = strategy.what.num_fragments, numbers_of(rehearsal, schedule)
    parts = [_Part(rehearsal, numbers == fragment, strategy.what.outer) for fragment in range(count)]
    due = moves(count, pace, strategy.when.late_steps)

    def advance(step: int) -> None:
        rehearsal.take([1] * rehearsal.count)
        matrix = matrices[step // pace % len(matrices)]
        for move in due:
            if step % pace + 1 == move.taken and move.merges:
                parts[move.fragment].merge(float(strategy.when.kept))
            elif step % pace + 1 == move.taken:
                parts[move.fragment].send(matrix)

    return advance


def numbers_of(rehearsal: Any, schedule: Schedule) -> torch.Tensor:  # noqa: ANN401 - as above
    """The fragment of each number of a model."""
    named: list[tuple[str, int]] = rehearsal.named
    found = assign(schedule.strategy.what.fragments, [((name,), size) for name, size in named])
    return torch.repeat_interleave(torch.tensor(found), torch.tensor([size for _, size in named]))


class _Part:
    """One fragment of all workers' models, with each worker's anchor and momentum, equal where all have them in common.

    All arrays are (workers, numbers).
    """

    def __init__(self, rehearsal: Any, mine: torch.Tensor, outer: Outer) -> None:  # noqa: ANN401 - as above
        self._rehearsal, self._mine, self._outer = rehearsal, mine, outer
        self._anchors = rehearsal.models[:, mine].clone()
        self._momenta = torch.zeros_like(self._anchors)
        self._sent: torch.Tensor | None = None

    def send(self, matrix: torch.Tensor) -> None:
        """Take the groups' means; those who are in one then make an outer step if it is of all, or of own anchors."""
        self._sent = matrix @ self._rehearsal.models[:, self._mine]
        meets = matrix.diagonal() < 1
        self._steps = (meets & ((matrix > 0).all() | torch.tensor(self._outer.has_own_anchors)))[:, None]

    def merge(self, kept: float) -> None:
        if self._sent is None:  # the first round may merge what no round has sent
            return
        moved, momentum = self._sent - self._anchors, float(self._outer.momentum)
        following = momentum * self._momenta + moved
        change = moved + momentum * following if self._outer.nesterov else following
        self._momenta = torch.where(self._steps, following, self._momenta)
        self._anchors = torch.where(self._steps, self._anchors + float(self._outer.lr) * change, self._anchors)
        coming = torch.where(self._steps, self._anchors, self._sent)
        self._rehearsal.models[:, self._mine] = kept * self._rehearsal.models[:, self._mine] + (1 - kept) * coming
