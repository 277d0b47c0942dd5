"""Options of the search against an independent annealer of explicit groups that starts from each of them.

    python -m benchmarks.planner.annealer [--effort 4] [--attack 3] [--options 6] [--seed 0] [--only 4x4 ...] [-o FILE]

On each cluster `--options` of the search's front (communication against consensus distance, plain means around rings,
periods up to 24) are attacked for `--attack` seconds of CPU time each: workers change groups, groups merge and fall
apart, phases are swapped, copied, put in and taken out. The annealer shares no code with the search but the α–β model,
and every point that counts is measured by `topo.metrics` again. An option's ratio is its consensus distance over the
least found at no more communication, or its communication over the least found at no more consensus distance.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.kit import command, machine, parser, table, write
from partreduce.schedulers.synthesis import Problem, search
from partreduce.schedulers.synthesis.clock import MANY_SECONDS, Clock
from partreduce.topo import metrics
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import GroupPhases, StaticGroups
from partreduce.topo.timing import loads
from partreduce.topo.timing.cost import communication

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
CASES = {
    "4x4, a NIC halved": ("4x4", replace(EVEN, node_nic=((3, Link.of_bandwidth(2.5e9)),))),
    "2x8, 8 rails": ("2x8", replace(EVEN, num_nics=8)),
    **{shape: (shape, EVEN) for shape in ("5,3,1", "3,3,2", "7x6", "1x9", "1x16")},
}
BATCH = 32
"""Changed schedules that are scored together."""
LONGEST = 24


@dataclass
class Annealer:
    """`points` (cost, value, groups of all workers in each phase) are all that it saw and that no other one beats."""

    cluster: Cluster
    rng: np.random.Generator
    points: list[tuple[float, float, Labels]] = field(default_factory=list)
    seconds_of: dict[bytes, float] = field(default_factory=dict)
    scored: int = 0

    def phase_cost(self, row: Labels) -> float:
        key = (row[:, None] == row).tobytes()
        if key not in self.seconds_of:
            phase, size = Phase.from_labels(row), EVEN.model_bytes or 0
            load = loads.of_phase(
                phase, self.cluster, self.cluster.hardware or EVEN, model_bytes=size, algorithm="ring"
            )
            self.seconds_of[key] = float(load.seconds().max(initial=0.0))
        return self.seconds_of[key]

    def values(self, rows: Labels) -> Floats:
        """Consensus distances of schedules (B, T, n); infinite without consensus."""
        n = rows.shape[-1]
        together = rows[..., None] == rows[..., None, :]
        phases = together / together.sum(-1, keepdims=True) - 1.0 / n  # (B, T, n, n)
        noise = np.eye(n) - 1.0 / n
        product, spread = np.broadcast_to(np.eye(n), phases[:, 0].shape), np.zeros_like(phases[:, 0])
        for phase in phases.swapaxes(0, 1):
            product, spread = phase @ product, phase @ (spread + noise) @ phase
        for _ in range(11):
            spread = spread + product @ spread @ product.swapaxes(-1, -2)
            product = product @ product
        total = np.zeros(len(rows))
        for phase in phases.swapaxes(0, 1):
            spread = phase @ (spread + noise) @ phase
            total += np.trace(spread, axis1=1, axis2=2)
        self.scored += len(rows)
        return np.where(np.abs(product).max(axis=(1, 2)) < 1e-6, total / (n * rows.shape[1]), np.inf)

    def changed(self, rows: Labels) -> Labels:
        rng, (length, n) = self.rng, rows.shape
        rows, t, u = rows.copy(), *rng.integers(length, size=2).tolist()
        (i, j), row, kind = rng.integers(n, size=2).tolist(), rows[t], int(rng.integers(10))
        if kind <= 2:  # a worker joins another's group
            row[i] = row[j]
        elif kind == 3:  # a worker leaves
            row[i] = row.max() + 1
        elif kind <= 5:
            row[i], row[j] = row[j], row[i]
        elif kind == 6 and row[i] != row[j]:  # two groups merge
            row[row == row[i]] = row[j]
        elif kind == 6:  # one falls in two
            row[(row == row[i]) & (rng.random(n) < 0.5)] = row.max() + 1
        elif kind == 7 and length < LONGEST:
            return np.insert(rows, u, row, axis=0)
        elif kind == 8 and length > 1:
            return np.delete(rows, t, axis=0)
        else:
            rows[[t, u]] = rows[[u, t]]
        return rows

    def attack(self, here: Labels, cost: float, value: float, *, aims_at_value: bool, seconds: float) -> None:
        """Anneal: the least of one metric with the other one no larger than that of the option."""
        begun = time.process_time()
        while (share := (time.process_time() - begun) / seconds) < 1:
            trials = [here]
            for _ in range(BATCH - 1):
                other = here
                for _ in range(int(self.rng.integers(1, 4))):
                    other = self.changed(other)
                trials.append(other)
            costs = np.array([sum(map(self.phase_cost, rows)) / len(rows) for rows in trials])
            values = np.full(len(trials), np.inf)
            for length in {len(rows) for rows in trials}:
                places = [k for k, rows in enumerate(trials) if len(rows) == length]
                values[places] = self.values(np.stack([trials[k] for k in places]))
            for k in np.flatnonzero(np.isfinite(values)).tolist():
                self.keep(costs[k], values[k], trials[k])
            over = np.log(costs / cost + 1e-12), np.log(values / value + 1e-12)
            aim, held = over[::-1] if aims_at_value else over
            energies = np.nan_to_num(aim + 10 * np.maximum(0, held), nan=1e9, posinf=1e9)
            best = int(np.argmin(energies[1:])) + 1
            heat = 0.02 * 1e-2**share
            if energies[best] < energies[0] or self.rng.random() < math.exp((energies[0] - energies[best]) / heat):
                here = trials[best]

    def keep(self, cost: float, value: float, rows: Labels) -> None:
        if not any(c <= cost and v <= value + 1e-9 for c, v, _ in self.points):
            self.points = [p for p in self.points if p[0] < cost or p[1] < value]
            self.points.append((cost, value, rows))

    def confirmed(self) -> list[tuple[float, float]]:
        """Every point by the metrics of `topo`."""
        found = []
        for _, _, rows in self.points:
            phases = GroupPhases(tuple(Phase.from_labels(row) for row in rows))
            schedule = Schedule("attack", self.cluster, StaticGroups(phases=phases))
            cost = communication(schedule, self.cluster.hardware or EVEN).per_step
            found.append((cost, float(metrics.consensus_distance(schedule))))
        return found


def rows_of(schedule: Schedule) -> Labels:
    """(T, n): the group of every worker in every phase; who skips is alone."""
    rows = np.array([schedule.phase(t).labels() for t in range(schedule.period)], dtype=np.int64)
    return np.where(rows < 0, schedule.num_workers + np.arange(schedule.num_workers), rows)


def attacked(name: str, effort: float, seconds: float, count: int, seed: int) -> list[object]:
    """A row of the table."""
    shape, hardware = CASES[name]
    cluster = replace(Cluster.parse(shape), hardware=hardware)
    clock = Clock(seconds=MANY_SECONDS, effort=effort)
    found = search(Problem(cluster=cluster), clock, effort, seed=seed).candidates
    scored = [(one.communication_seconds_per_step, one.consensus_distance, one.schedule) for one in found]
    options = sorted((one for one in scored if one[1] > 1e-6), key=lambda one: one[:2])
    chosen = [options[i] for i in np.unique(np.linspace(0, len(options) - 1, count).astype(int)).tolist()]
    annealer = Annealer(cluster, np.random.default_rng(seed + 1))
    for cost, value, schedule in chosen:
        for aims_at_value in (True, False):
            annealer.attack(rows_of(schedule), cost, value, aims_at_value=aims_at_value, seconds=seconds / 2)
    points, ratios = annealer.confirmed(), []
    for cost, value, _ in chosen:
        less = [value / v for c, v in points if c <= cost * (1 + 1e-9)] + [
            cost / c for c, v in points if v <= value * (1 + 1e-9)
        ]
        ratios.append(max([1.0, *less]))
    return [
        name,
        len(chosen),
        *(sum(r > 1 + over for r in ratios) for over in (0.01, 0.03)),
        f"{max(ratios):.3f}",
        annealer.scored,
    ]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--effort", type=float, default=4.0)
    arguments.add_argument("--attack", type=float, default=3.0)
    arguments.add_argument("--options", type=int, default=6)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    arguments.add_argument("-o", "--output", type=Path)
    given = arguments.parse_args()
    rows = []
    for name in given.only:
        rows.append(attacked(name, given.effort, given.attack, given.options, given.seed))
        print(rows[-1], flush=True)
    head = ["cluster", "options", "beaten by > 1 %", "> 3 %", "largest ratio", "schedules tried"]
    write(
        given.output, "Options against an annealer", f"`{command('planner.annealer')}`; {machine()}.", table(head, rows)
    )


if __name__ == "__main__":
    main()
