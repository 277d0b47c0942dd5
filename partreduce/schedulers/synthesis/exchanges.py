"""Periods improved phase by phase: another phase in the place of one, or of one kind, one more, or one less.

What enters a phase and what all later rounds make of what leaves it are known matrices of the period, so every single
exchange has an estimate, exact but for its own recurrence in later periods; those that look best are scored exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from partreduce.schedulers.synthesis.choices import Choices, Period
from partreduce.schedulers.synthesis.clock import Clock
from partreduce.topo.arithmetic.lyapunov import steady_state
from partreduce.topo.rule import RulePhase

Floats = npt.NDArray[np.float64]
Indices = tuple[int, ...]

TRIED, SCORED, MAX_ENTRIES = 48, 24, 12_000_000
"""Phases that are estimated in each place, exchanges scored exactly, and entries of the matrices of all phases."""
NEGLIGIBLE, MAX_DOUBLINGS, UNSETTLED = 1e-9, 12, 1e-3
"""Workers agree if of 4096 periods no more is left of the first; what is slower no search wants."""
PER_CALL, PER_MATRIX, PER_PRODUCT = 5e-5, 5e-7, 4e-10
"""Nominal seconds of one operation on a stack, of each matrix in it, and of each of its G³ products."""


class Exchanges:
    """Phases to exchange, with their matrices (A, C, G, G) and seconds (A,); phase 0 is silent."""

    def __init__(self, choices: Choices, worker_steps: Sequence[int], phases: Iterable[RulePhase], seed: int) -> None:
        """Take as many of the phases as memory holds."""
        self.choices, self.worker_steps, self.space = choices, worker_steps, choices.space(worker_steps)
        self.rng = np.random.default_rng(seed)
        most = max(TRIED, MAX_ENTRIES // self.space.fresh.size)
        self.phases = tuple(dict.fromkeys(((), *phases)))[:most]
        self.place = {phase: index for index, phase in enumerate(self.phases)}
        self.matrices = choices.matrices(self.phases)
        self.silent = float(choices.step_seconds([((),)], worker_steps)[0]) * self.space.instants  # a round's computing
        # What a phase adds to a period lies between its slowest group's seconds and those of all workers on average.
        self.costs = np.array([(choices.cost(one) + choices.busy(one)) / 2 for one in self.phases])

    def better(
        self, period: Period, front: Sequence[tuple[float, float]], clock: Clock
    ) -> Iterator[tuple[Period, tuple[float, float]]]:
        """Periods one exchange away with their seconds and distance per step; the front is by rising seconds."""
        if not self.place.keys() >= set(period):
            return
        found = self._likely(tuple(self.place[phase] for phase in period), front, clock)
        for length in sorted({len(indices) for indices in found}):
            table = [indices for indices in found if len(indices) == length]
            periods = [tuple(self.phases[index] for index in indices) for indices in table]
            self._charge(clock, len(table) * self.space.fresh.size, length)
            seconds = self.choices.step_seconds(periods, self.worker_steps)
            values = self.distances(np.array(table), clock)
            yield from zip(periods, zip(seconds.tolist(), values.tolist(), strict=True), strict=True)

    def distances(self, table: npt.NDArray[np.int64], clock: Clock) -> Floats:
        """The consensus distance of each period of phases, (N, T) → (N,); infinite where workers never agree."""
        space, noise = self.space, np.zeros((len(table), *self.space.fresh.shape))
        product = noise + np.eye(noise.shape[-1])
        self._charge(clock, noise.size, 4 * table.shape[1] + 24)
        for phases in table.T:
            matrices = self.matrices[phases]
            noise = matrices @ (noise + space.fresh) @ matrices.swapaxes(-1, -2)
            product = matrices @ product
        covariance, left = steady_state(product, noise, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS)
        total = np.zeros(len(table))
        for phases in table.T:
            matrices = self.matrices[phases]
            covariance = matrices @ (covariance + space.fresh) @ matrices.swapaxes(-1, -2)
            total += np.trace(covariance, axis1=-2, axis2=-1) @ space.weight
        settled = np.abs(left).max(axis=(1, 2, 3)) < UNSETTLED
        return np.where(settled, space.floor + total / table.shape[1], np.inf)

    def _likely(self, own: Indices, front: Sequence[tuple[float, float]], clock: Clock) -> list[Indices]:
        """The exchanges that are estimated to improve the front most, then one kind of phase exchanged everywhere."""
        limits, size, kinds = self.choices.problem.limits, len(own), sorted(set(own) - {0})
        others = self.rng.permutation(len(self.phases))[:TRIED].tolist()
        is_full = limits.max_distinct_phases is not None and len(kinds) >= limits.max_distinct_phases
        pool = np.unique([0, *kinds, *([] if is_full else others)])
        period = tuple(self.phases[index] for index in own)
        whole = float(self.choices.step_seconds([period], self.worker_steps)[0]) * size * self.space.instants
        spent, extra = self.costs[list(own)], self.costs[pool]
        total, replaced, inserted, removed = self._estimates(own, pool, clock)
        options: list[tuple[float, float, Indices]] = []  # seconds and sum of distances of the period
        for t in range(size):
            rest = whole - spent[t] - self.silent
            options.append((rest, total + removed[t], (*own[:t], *own[t + 1 :])))
            for a, cost in enumerate(extra.tolist()):
                phase = int(pool[a])
                options.append((rest + self.silent + cost, total + replaced[t, a], (*own[:t], phase, *own[t + 1 :])))
                options.append((whole + self.silent + cost, total + inserted[t, a], (*own[:t], phase, *own[t:])))
        options = [one for one in options if limits.min_period <= len(one[2]) <= limits.max_period and one[2] != own]
        lengths = np.array([max(1, len(indices)) for _, _, indices in options])
        costs = np.array([cost for cost, _, _ in options]) / (lengths * self.space.instants)
        values = self.space.floor + np.array([value for _, value, _ in options]) / lengths
        at = np.searchsorted([seconds * (1 + 1e-9) for seconds, _ in front[1:]], costs)
        best = np.argsort(values / np.maximum(1e-12, [value for _, value in front])[at], kind="stable")
        chosen = [options[index][2] for index in best[:SCORED].tolist()]
        for kind, other in zip(self.rng.permutation(kinds).tolist(), others, strict=False):
            chosen.append(tuple(other if phase == kind else phase for phase in own))
        return [indices for indices in dict.fromkeys(chosen) if indices]

    def _estimates(
        self, own: Indices, pool: npt.NDArray[np.int64], clock: Clock
    ) -> tuple[float, Floats, Floats, Floats]:
        """The sum of distances; what a phase of the pool adds in place of one, or before it, (T, A), and none, (T,)."""
        space, size, chosen, tried = self.space, len(own), self.matrices[list(own)], self.matrices[pool]
        self._charge(clock, tried.size * size, 3)
        eye = np.broadcast_to(np.eye(chosen.shape[-1]), space.fresh.shape)
        product, noise, weight = eye, np.zeros_like(eye), np.zeros_like(eye)
        for one in chosen:
            weight = weight + product.swapaxes(-1, -2) @ product
            noise, product = one @ (noise + space.fresh) @ one.swapaxes(-1, -2), one @ product
        before = [steady_state(product, noise, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS).covariance]
        turned = product.swapaxes(-1, -2)
        after = [steady_state(turned, weight, negligible=NEGLIGIBLE, max_doublings=MAX_DOUBLINGS).covariance]
        for one in chosen:  # `before[t]`: the covariance that phase t finds
            before.append(one @ (before[-1] + space.fresh) @ one.swapaxes(-1, -2))
        for one in chosen[::-1]:  # `after[t]`: the weight, now and later, on what reaches phase t
            after.insert(0, eye + one.swapaxes(-1, -2) @ after[0] @ one)

        def weighed(covariance: Floats, weights: Floats) -> Floats:
            return np.asarray((covariance * weights).sum(axis=(-2, -1)) @ space.weight)

        replaced, inserted, removed = np.empty((size, len(pool))), np.empty((size, len(pool))), np.empty(size)
        for t in range(size):
            left = tried @ (before[t] + space.fresh) @ tried.swapaxes(-1, -2)
            mine, skipped = weighed(before[t + 1], after[t + 1]), weighed(before[t], after[t + 1] - eye)
            replaced[t], removed[t] = weighed(left, after[t + 1]) - mine, skipped - mine
            inserted[t] = weighed(left, after[t]) - weighed(before[t], after[t] - eye)
        total = sum(float(weighed(one, eye)) for one in before[1:])
        return total, replaced, inserted, removed

    def _charge(self, clock: Clock, entries: int, operations: int) -> None:
        size = self.matrices.shape[-1]
        clock.charge(operations * (PER_CALL + entries / size**2 * (PER_MATRIX + PER_PRODUCT * size**3)))
