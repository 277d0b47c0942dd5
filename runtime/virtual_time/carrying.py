"""Carrying out the reduces of a gap on arrays: whoever listens to a run learns what training would come of it.

In virtual time the protocol object says whose update of which step each reduce takes. Here every worker has numbers in
the place of parameters, which are sent, kept and averaged just so. What a step adds to them is for subclasses to say:
noise of which the outcome is known (`replay`), gradients of a network, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.protocols.hop_weights import weights_of
from partreduce.topo.round import Round
from partreduce.topo.strategies.gap import Gap


class Carrying:
    """A listener of `run_gaps`. O(degree · numbers) for a reduce.

    `now` (num_workers, numbers) is what every worker has, `update` of the same shape what its own step adds, `step`
    (num_workers) where it is, and `sent` what it has sent, by step, as long as somebody may take it.

    Args:
        round_: the graph with its weights.
        gap: the setting, whose staleness and weights count here.
        start: every worker's first numbers, shape (num_workers, numbers); changed in place.
    """

    def __init__(self, round_: Round, gap: Gap, start: npt.NDArray[np.float64]) -> None:
        self.gap, self.now, self.update = gap, start, np.zeros_like(start)
        count = round_.num_workers
        self.step = [0] * count
        self.sent: list[dict[int, npt.NDArray[np.float64]]] = [{} for _ in range(count)]
        self._weight: list[dict[int, Fraction]] = [{} for _ in range(count)]
        self._targets: list[list[int]] = [[] for _ in range(count)]
        for source, target, weight in round_.edges():
            self._weight[target][source] = weight
            self._targets[source].append(target)

    def enters(self, worker: int, step: int) -> None:
        self.step[worker] = step

    def sends(self, worker: int, step: int, *, adds_own: bool) -> None:
        """A worker sends its parameters, with its update in the serial order."""
        if adds_own:
            self.now[worker] += self.update[worker]
        sent = self.sent[worker]
        needed = min((self.step[v] for v in self._targets[worker]), default=step) - self.gap.staleness
        for old in [old for old in sent if old < needed]:
            del sent[old]
        sent[step] = self.now[worker].copy()

    def averages(self, worker: int, step: int, used: Sequence[tuple[int, int]], *, adds_own: bool) -> None:
        """A worker averages; in the parallel order it adds its update then, but not once more before a skip."""
        own, weights = weights_of(self.gap, self._weight[worker], step, self.step[worker], used)
        now = self.now[worker]
        now *= float(own)
        for (source, taken), weight in zip(used, weights, strict=True):
            now += float(weight) * self.sent[source][taken]
        if adds_own:
            now += self.update[worker]
