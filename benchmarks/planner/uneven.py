"""Options of the search on uneven clusters against a long, independent local search that starts from each of them.

    python -m benchmarks.planner.uneven [--effort 20] [--attack 30] [--seed 0] [--only 3,3,2 ...] [-o FILE]

For every option of the search's front (communication against consensus distance, plain means, ring, periods up to 24)
the adversary anneals explicit groups: worker by worker, with phases swapped, copied, put in and taken out. It shares no
code with the search but the α–β model, and every pair that counts is measured by `topo.figures` again. An option's
ratio is the larger one of two: its consensus distance over the least that the adversary found at no more communication
(from whatever option it started), and its communication over the least at no more consensus distance. Two searches of
one effort are compared, without and with refinement; the adversary spends `--attack` seconds of CPU time on each, and
what it found from either counts against both. Writes FILE.md.
"""

from __future__ import annotations

import argparse
import math
import pickle
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from benchmarks.kit import RESULTS, machine
from partreduce import Job
from partreduce.planner.competitors import competitors
from partreduce.planner.front import front as planner_front
from partreduce.schedulers.synthesis import Candidate, Problem
from partreduce.schedulers.synthesis import front as synthesis_front
from partreduce.topo import figures
from partreduce.topo.cluster import Cluster
from partreduce.topo.hardware import Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.static import GroupPhases, Static
from partreduce.topo.timing import loads
from partreduce.topo.timing.cost import communication

if TYPE_CHECKING:
    from partreduce.schedulers.synthesis.alphabet_search import AlphabetSearch

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

EVEN = Hardware(inside=Link.of_bandwidth(10e9), nic=Link.of_bandwidth(5e9), model_bytes=552_000_000, compute=0.05)
BATCH = 32
"""Changed schedules that are scored together."""
LONGEST = 24


def halved(node: int) -> Hardware:
    return replace(EVEN, node_nic=((node, Link.of_bandwidth(2.5e9)),))


def drawn(seed: int, num_nodes: int) -> Hardware:
    """NICs of 1 to 16 GB/s, one per node, at random; 10 GB/s inside."""
    rng = np.random.default_rng(seed)
    own = tuple((v, Link.of_bandwidth(1e9 * 16 ** rng.uniform())) for v in range(num_nodes))
    return replace(EVEN, node_nic=own)


CASES = {
    "4x4, NIC of node 3 halved": ("4x4", halved(3)),
    "3,3,2": ("3,3,2", EVEN),
    "5,3": ("5,3", EVEN),
    "4,4,2,2": ("4,4,2,2", EVEN),
    "3x4, NICs drawn (1)": ("3x4", drawn(1, 3)),
    "4,3,3,2, NICs drawn (2)": ("4,3,3,2", drawn(2, 4)),
    "6,6, NIC of node 1 halved": ("6,6", halved(1)),
}


@dataclass
class Point:
    cost: float
    value: float
    rows: Labels  # (T, n): the group of every worker in every phase


@dataclass
class Adversary:
    """An annealer of explicit schedules; `points` are all that it saw and that no other point beats."""

    cluster: Cluster
    rng: np.random.Generator
    points: list[Point] = field(default_factory=list)
    seconds_of: dict[bytes, float] = field(default_factory=dict)
    scored: int = 0

    def cost(self, rows: Labels) -> float:
        return sum(map(self.phase_cost, rows)) / len(rows)

    def phase_cost(self, row: Labels) -> float:
        key = (row[:, None] == row).tobytes()
        if key not in self.seconds_of:
            hardware = self.cluster.hardware
            assert hardware is not None
            assert hardware.model_bytes is not None
            here = loads.of_phase(
                Phase.from_labels(row), self.cluster, hardware, model_bytes=hardware.model_bytes, form="ring"
            )
            self.seconds_of[key] = float(here.seconds().max(initial=0.0))
        return self.seconds_of[key]

    def values(self, schedules: list[Labels]) -> Floats:
        """Consensus distances of schedules of one length; infinite without consensus."""
        rows = np.stack(schedules)  # (B, T, n)
        n = rows.shape[-1]
        together = rows[..., None] == rows[..., None, :]
        phases = together / together.sum(-1, keepdims=True) - 1.0 / n  # (B, T, n, n)
        noise = np.eye(n) - 1.0 / n
        product, spread = np.broadcast_to(np.eye(n), phases[:, 0].shape), np.zeros_like(phases[:, 0])
        for t in range(rows.shape[1]):
            product = phases[:, t] @ product
            spread = phases[:, t] @ (spread + noise) @ phases[:, t]
        for _ in range(11):
            spread = spread + product @ spread @ product.swapaxes(-1, -2)
            product = product @ product
        settled = np.abs(product).max(axis=(1, 2)) < 1e-6
        total = np.zeros(len(rows))
        for t in range(rows.shape[1]):
            spread = phases[:, t] @ (spread + noise) @ phases[:, t]
            total += np.trace(spread, axis1=1, axis2=2)
        self.scored += len(rows)
        return np.where(settled, total / (n * rows.shape[1]), np.inf)

    def changed(self, rows: Labels) -> Labels:
        """One to three random changes."""
        for _ in range(int(self.rng.integers(1, 4))):
            rows = self.change(rows)
        return rows

    def change(self, rows: Labels) -> Labels:
        rng, (length, n) = self.rng, rows.shape
        kind, t = int(rng.integers(10)), int(rng.integers(length))
        rows, i, j = rows.copy(), *rng.integers(n, size=2).tolist()
        row = rows[t]
        if kind <= 2:  # a worker joins another's group
            row[i] = row[j]
        elif kind == 3:  # a worker leaves
            row[i] = row.max() + 1
        elif kind <= 5:
            row[i], row[j] = row[j], row[i]
        elif kind == 6:  # two groups merge, or one falls in two
            if row[i] != row[j]:
                row[row == row[i]] = row[j]
            else:
                row[(row == row[i]) & (rng.random(n) < 0.5)] = row.max() + 1
        elif kind == 7:  # a phase is copied over another, or beside it
            u = int(rng.integers(length))
            if rng.random() < 0.5 and length < LONGEST:
                return np.insert(rows, u, row, axis=0)
            rows[u] = row
        elif kind == 8 and length > 1:
            return np.delete(rows, t, axis=0)
        else:
            u = int(rng.integers(length))
            rows[[t, u]] = rows[[u, t]]
        return rows

    def attack(self, start: Labels, *, cost: float, value: float, aim: str, until: float) -> None:
        """Anneal from `start`: the least of `aim` with the other figure no larger than that of the option."""
        here, begun = start, time.process_time()
        while (now := time.process_time()) < until:
            heat = 0.02 * (1e-2 ** ((now - begun) / max(until - begun, 1e-9)))
            trials = [here] + [self.changed(here) for _ in range(BATCH - 1)]
            costs = np.array([self.cost(rows) for rows in trials])
            values = np.full(len(trials), np.inf)
            for length in {len(rows) for rows in trials}:
                places = [k for k, rows in enumerate(trials) if len(rows) == length]
                values[places] = self.values([trials[k] for k in places])
            for k in range(len(trials)):
                self.keep(costs[k], values[k], trials[k])
            over_cost, over_value = np.log(costs / cost + 1e-12), np.log(values / value + 1e-12)
            energies = (
                over_value + 10 * np.maximum(0, over_cost)
                if aim == "consensus-distance"
                else over_cost + 10 * np.maximum(0, over_value)
            )
            energies = np.where(np.isfinite(energies), energies, 1e9)
            best = int(np.argmin(energies[1:])) + 1
            if energies[best] < energies[0] or self.rng.random() < math.exp((energies[0] - energies[best]) / heat):
                here = trials[best]

    def keep(self, cost: float, value: float, rows: Labels) -> None:
        if not math.isfinite(value) or any(p.cost <= cost and p.value <= value + 1e-9 for p in self.points):
            return
        self.points = [p for p in self.points if p.cost < cost or p.value < value]
        self.points.append(Point(cost, value, rows))

    def confirm(self) -> None:
        """Every point by the figures of `topo`."""
        assert self.cluster.hardware is not None
        for point in self.points:
            phases = GroupPhases(tuple(Phase.from_labels(row) for row in point.rows))
            schedule = Schedule("attack", self.cluster, Static(phases=phases))
            point.value = float(figures.consensus_distance(schedule))
            point.cost = communication(schedule, self.cluster.hardware).per_step

    def ratio(self, cost: float, value: float) -> float:
        """How much better the best point is than an option of this cost and value."""
        within = [value / p.value for p in self.points if p.cost <= cost * (1 + 1e-9)]
        calm = [cost / p.cost for p in self.points if p.value <= value * (1 + 1e-9)]
        return max([*within, *calm, 1.0])


def options_of(cluster: Cluster, effort: float, seed: int, *, refined: bool) -> list[Candidate]:
    """The search's front as the planner asks for it, what communication and consensus distance alone leave of it."""
    hints = planner_front(competitors(Job(cluster=cluster, seed=seed)))
    problem = Problem(cluster=cluster, hints=tuple(option.schedule for option in hints))
    # Without refinement the search of the whole alphabet goes on in its place.
    instead = nullcontext() if refined else patch.object(synthesis_front, "_refine", _go_on)
    with instead:
        found = synthesis_front.synthesise(problem, effort=effort, seed=seed).candidates
    least, kept = math.inf, []
    for one in found:
        if 1e-6 < one.consensus_distance < least * (1 - 1e-9):
            kept.append(one)
            least = one.consensus_distance
    return kept


def _go_on(_problem: Problem, tried: AlphabetSearch, until: float, _seed: int) -> None:
    tried.go_on(until)


def rows_of(schedule: Schedule) -> Labels:
    rows = []
    for t in range(schedule.period):
        labels = schedule.phase(t).labels().astype(np.int64)
        alone = labels < 0
        labels[alone] = schedule.num_workers + np.arange(int(alone.sum()))
        rows.append(labels)
    return np.array(rows)


def run(name: str, effort: float, seconds: float, seed: int, fronts: Path | None) -> list[str]:
    """The rows of one cluster: without and with refinement."""
    shape, hardware = CASES[name]
    cluster = replace(Cluster.parse(shape), hardware=hardware)
    adversary, searched = Adversary(cluster, np.random.default_rng(seed + 1)), {}
    for refined in (False, True):
        options = options_of(cluster, effort, seed, refined=refined)
        share = seconds / (2 * len(options))
        for option in options:
            own = {"cost": option.communication_seconds_per_step, "value": option.consensus_distance}
            for aim in ("consensus-distance", "communication"):
                until = time.process_time() + share
                adversary.attack(rows_of(option.schedule), **own, aim=aim, until=until)
        searched[refined] = options
    adversary.confirm()
    lines = []
    for refined, options in searched.items():
        ratios = [adversary.ratio(o.communication_seconds_per_step, o.consensus_distance) for o in options]
        beaten = [sum(r > 1 + by for r in ratios) for by in (0.01, 0.03, 0.1)]
        cells = [name, "yes" if refined else "no", str(len(options)), *map(str, beaten)]
        cells += [f"{max(ratios):.3f}", f"{np.mean(ratios):.4f}", str(adversary.scored)]
        lines.append(f"| {' | '.join(cells)} |")
        if fronts is not None:
            fronts.mkdir(exist_ok=True)
            points = [(p.cost, p.value, p.rows) for p in adversary.points]
            record = [(o.communication_seconds_per_step, o.consensus_distance, rows_of(o.schedule)) for o in options]
            file = fronts / f"{name}-{refined}.pickle".replace(" ", "_")
            file.write_bytes(pickle.dumps((record, ratios, points)))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=20.0, help="of each search")
    parser.add_argument("--attack", type=float, default=30.0, help="CPU seconds of the adversary for each front")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="CLUSTER", choices=list(CASES))
    parser.add_argument("--fronts", type=Path, help="a folder for what the adversary found, to look into")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "uneven")
    options = parser.parse_args()
    head = ["cluster", "refined", "options", "> 1 %", "> 3 %", "> 10 %", "largest ratio", "mean", "schedules tried"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    command = f"python -m benchmarks.planner.uneven --effort {options.effort:g} --attack {options.attack:g}"
    command += f" --seed {options.seed} --only " + " ".join(f'"{name}"' for name in options.only)
    about = (
        f"`{command}`; {machine()}, shared. Options of the search that an independent annealer of explicit groups "
        "beats by more than so much: less consensus distance at no more communication, or less communication at "
        "no more consensus distance."
    )
    for name in options.only:
        rows = run(name, options.effort, options.attack, options.seed, options.fronts)
        lines += rows
        print("\n".join(rows), flush=True)
        options.output.with_suffix(".md").write_text(f"# Uneven clusters\n\n{about}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
