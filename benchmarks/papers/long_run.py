"""A run long enough to matter: where a thousand steps of the text model end, by each way of synchronising.

    python -m benchmarks.papers.long_run                                      # root; 12 runs, minutes each
    python -m benchmarks.papers.long_run --contestants pipeline --seeds 0 1   # some of them; the others stay

Real workers over gloo and the lab's network, whose links are not shaped, and no step sleeps: what a step computes does
not depend on how long it takes, because all of these strategies are deterministic given the seed. All run at one
learning rate. Losses are of the mean model over the lab's 2,048 samples.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from benchmarks.lab.contestants import RECOMMENDED, contestants
from benchmarks.lab.plan import Planner
from benchmarks.lab.setting import Setting
from benchmarks.papers.rows import Curve, Results, Row, add, read, value
from partreduce.topo.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from partreduce.topo.schedule import Schedule

FREE = "10gbit"
EVERY = 50
RATE = 0.2
PAPER = "pipe-sgd"
PLANNED = Setting(name="40 Mbit/s", rate="40mbit", compute=0.16, task="text")
"""What the recommendation is planned for."""
SHAPE = (4, 2)
STEPS = 1000
FIGURE, PLOT = "Loss after 1,000 steps of the text model", "Long run: loss of the text model over steps"
NAMES = ("flat ring", "pipeline", RECOMMENDED, f"{RECOMMENDED}, codec", f"{RECOMMENDED}, codec left out")
WORDS = {
    "flat ring": "All-Reduce",
    "pipeline": "Pipe",
    RECOMMENDED: "planner's recommendation",
    f"{RECOMMENDED}, codec": "planner's recommendation with a codec",
    f"{RECOMMENDED}, codec left out": "the same recommendation without its codec",
}


WHY = {
    FIGURE: "the paper has no such figure. One rate for all, three seeds. The ranges of All-Reduce, Pipe and the "
    "recommendation with its codec overlap; seed by seed Pipe ends 0.00 to 0.03 above All-Reduce, and the "
    "recommendation, which averages parameters one step late, 0.01. Its codec changes less than 0.01. The "
    "recommendation without codecs allowed averages two halves in turn, every third step and late, and ends 0.04 to "
    "0.05 higher: that is what averaging less costs.",
}


def run(schedules: dict[str, Schedule], seeds: Sequence[int], steps: int, limit: float) -> Iterator[Curve]:
    """A curve of every schedule for each seed; seed by seed, so that a run that is stopped has pairs.

    Raises:
        NoLabError: this machine cannot hold the lab.
    """
    from benchmarks.lab.crew import Crew
    from benchmarks.lab.job import Job
    from benchmarks.lab.measure import read_cell
    from benchmarks.lab.network import Network, why_not
    from benchmarks.lab.run import leave_on_a_signal
    from benchmarks.lab.tasks import read_data, write_data
    from benchmarks.papers.cells import NoLabError
    from partreduce.topo.document.writer import write_schedule

    if (reason := why_not()) is not None:
        raise NoLabError(reason)
    leave_on_a_signal()
    scratch = Path(tempfile.mkdtemp(prefix="partreduce-long-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        write_data("text", scratch / "text.npz")
        samples = read_data(scratch / "text.npz")
        with Network(SHAPE[0], FREE) as network, Crew(network, scratch) as crew:
            for seed in seeds:
                for name, schedule in schedules.items():
                    begun = time.monotonic()
                    folder = scratch / "cell"
                    folder.mkdir()
                    write_schedule(folder / "schedule.json", schedule)
                    job = Job(
                        name=name,
                        folder=str(folder),
                        how="partreduce",
                        num_nodes=SHAPE[0],
                        workers_per_node=SHAPE[1],
                        address="",
                        port=0,
                        schedule=str(folder / "schedule.json"),
                        task="text",
                        data_file=str(scratch / "text.npz"),
                        compute=0.0,
                        steps=steps,
                        every=EVERY,
                        limit=limit,
                        learning_rate=RATE,
                        seed=seed,
                    )
                    try:
                        crew.run(job)
                        curve = read_cell(job, samples).curve
                    finally:
                        shutil.rmtree(folder, ignore_errors=True)
                    at, _, losses = zip(*curve, strict=True)
                    took = time.monotonic() - begun
                    print(f"{name}, seed {seed}: {at[-1]:.0f} steps, loss {losses[-1]:.4f}, {took:.0f} s", flush=True)
                    yield Curve(plot=PLOT, name=f"{WORDS[name]}, seed {seed}", at=at, losses=losses)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def rows_of(curves: Sequence[Curve]) -> tuple[Row, ...]:
    """Where each way ended: median and ends over its seeds."""
    ends: dict[str, list[float]] = {}
    for curve in curves:
        if curve.plot == PLOT:
            ends.setdefault(curve.name.split(", seed ")[0], []).append(curve.losses[-1])
    return tuple(value(ends[name], figure=FIGURE, setting=name, unit="loss") for name in WORDS.values() if name in ends)


def schedules_of(names: Sequence[str]) -> dict[str, Schedule]:
    """What the contestants of the lab would run, the recommendation planned for nominal links."""
    planner = Planner({})
    cluster = Cluster.regular(*SHAPE)
    made = {}
    for contestant in contestants(planner, planner.corrected, planner.coded):
        if contestant.name in names and contestant.make is not None:
            schedule = contestant.make(cluster, PLANNED)
            assert schedule is not None
            made[contestant.name] = schedule
    return made


def main() -> int:
    from benchmarks.lab.run import machine
    from benchmarks.papers import page
    from benchmarks.papers.cells import NoLabError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contestants", default=";".join(NAMES), help="names separated by semicolons")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds of each run")
    chosen = parser.parse_args()
    commit = str(machine()["commit"])
    schedules = schedules_of(chosen.contestants.split(";"))
    print(*(f"{name}: {schedule.name}" for name, schedule in schedules.items()), sep="\n", flush=True)
    try:
        for curve in run(schedules, chosen.seeds, chosen.steps, chosen.limit):
            kept = read(PAPER).merged(Results(paper=PAPER, commit=commit, curves=(curve,)))
            add(Results(paper=PAPER, commit=commit, rows=rows_of(kept.curves), why=WHY, curves=(curve,)))
    except NoLabError as reason:
        print(f"lab: skipped: {reason}")
        return 0
    page.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
