"""Outer steps in the lab: how they are rehearsed, whole or in fragments that take turns and are merged late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from partreduce.topo.mixing import mixing_matrix
from partreduce.topo.strategies.fragments import assign, round_ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.outer import Outer


def by_turns(rehearsal: Any, schedule: Schedule) -> Callable[[int], None]:  # noqa: ANN401 - as rehearse.by_schedule
    """The steps of a schedule with outer steps or fragments; groups of fewer than all average as without them."""
    strategy, pace = schedule.strategy, schedule.pace_of(0)
    matrices = [torch.from_numpy(mixing_matrix(step)).float() for step in schedule.steps()]
    ends, numbers = round_ends(strategy.what.num_fragments, pace), numbers_of(rehearsal, schedule)
    parts = [_Part(rehearsal, numbers == fragment, strategy.what.outer) for fragment in range(len(ends))]

    def advance(step: int) -> None:
        rehearsal.take([1] * rehearsal.count)
        matrix = matrices[step // pace % len(matrices)]
        for end, part in zip(ends, parts, strict=True):
            if step % pace + 1 == end - strategy.when.late_steps:
                part.send(matrix)
            if step % pace + 1 == end:
                part.merge(float(strategy.when.kept))

    return advance


def numbers_of(rehearsal: Any, schedule: Schedule) -> torch.Tensor:  # noqa: ANN401 - as above
    """The fragment of each number of a model."""
    named: list[tuple[str, int]] = rehearsal.named
    found = assign(schedule.strategy.what.fragments, [((name,), size) for name, size in named])
    return torch.repeat_interleave(torch.tensor(found), torch.tensor([size for _, size in named]))


class _Part:
    """One fragment of all workers' models, with the anchor that they have in common."""

    def __init__(self, rehearsal: Any, mine: torch.Tensor, outer: Outer) -> None:  # noqa: ANN401 - as above
        self._rehearsal, self._mine, self._outer = rehearsal, mine, outer
        self._anchor = rehearsal.models[0, mine].clone()
        self._momentum = torch.zeros_like(self._anchor)

    def send(self, matrix: torch.Tensor) -> None:
        self._sent, self._is_of_all = matrix @ self._rehearsal.models[:, self._mine], bool((matrix > 0).all())

    def merge(self, kept: float) -> None:
        coming = self._sent
        if self._is_of_all:
            moved, momentum = coming[0] - self._anchor, float(self._outer.momentum)
            self._momentum = momentum * self._momentum + moved
            self._anchor += float(self._outer.lr) * (
                moved + momentum * self._momentum if self._outer.nesterov else self._momentum
            )
            coming = self._anchor.expand_as(coming)
        self._rehearsal.models[:, self._mine] = kept * self._rehearsal.models[:, self._mine] + (1 - kept) * coming
