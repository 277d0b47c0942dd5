"""The page of the long runs: a table a part, and one picture of six lines."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import kit
from benchmarks.lab.plan import Planner
from benchmarks.lab.plots import LINES, name_ends, pyplot
from benchmarks.papers.physics import step_seconds
from benchmarks.papers.prague import MS, OWN, OWN_WORDS
from benchmarks.papers.rows import read
from partreduce.report.axes import logarithmic, quiet
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.topo.timing.compute import ComputeTimes

if TYPE_CHECKING:
    from benchmarks.long_runs.part import Part

Row = dict[str, Any]
RESULT = kit.RESULTS / "long_runs"
ROUNDS = 50
WORDS = {
    "flat ring": "All-Reduce, Parallax's hybrid",
    "generator, smart, as published": "Prague's smart rule, as published",
    "generator, node-then-all 24": "generator, node-then-all",
    "Hop ring-based, backup 1, skip 10": "Hop, backup 1, skip 10",
    "eager majority": "eager-SGD, majority",
    "eager solo": "eager-SGD, solo",
    "pipeline, int8": "Pipe-SGD, 8 bit",
    "pipeline, int8, warm-up": "Pipe-SGD, 8 bit, 8 steps of warm-up",
}
DRAWN = [name for name in WORDS if name not in ("eager solo", "pipeline, int8, warm-up")]


def of_contestant(part: Part, rows: list[Row], name: str) -> list[Row]:
    """The long runs of one, seed by seed, at the best of the rates that most seeds ran at."""
    at_rate: dict[float, list[Row]] = {}
    for row in rows:
        if row["contestant"] == name and row["steps"] == part.steps:
            at_rate.setdefault(row["rate"], []).append(row)
    ends = ((-len(runs), median(run["held out"] for run in runs), rate) for rate, runs in at_rate.items())
    found = min(ends, default=None)
    return sorted(at_rate[found[2]], key=lambda run: run["seed"]) if found else []


def lab_ms() -> dict[str, float]:
    """Milliseconds of a step by contestant, of Prague's rows of the lab in the same regime."""
    rows = {row.key: row.measured for row in read("prague").rows}
    where = f"1 Gbit/s, {OWN['slow +5']}"
    keys = {name: (MS, f"{where}: {OWN_WORDS.get(name, name)}") for name in WORDS}
    return {name: rows[key] for name, key in keys.items() if key in rows}


def virtual_ms(part: Part, runs: list[Row]) -> float:
    """Milliseconds of a step in virtual time; fixed phases are timed here, everything else as it was trained."""
    if runs[0]["virtual"] is not None:
        return 1e3 * float(runs[0]["virtual"]) / part.steps
    schedule, algorithm = part.schedule_of(runs[0]["contestant"])
    timeline = simulate(
        schedule,
        Planner({}).hardware(part.setting),
        compute=ComputeTimes(trace=step_seconds(part.setting, part.shape, ROUNDS, 0)),
        num_rounds=ROUNDS,
        algorithm=algorithm,
    )
    return 1e3 * float(timeline.finish[-1].max()) / ROUNDS


def table(part: Part, rows: list[Row]) -> str:
    """A line a contestant: loss and share told right in the end, and how long the runs and a loss take in the lab."""
    taken, lines = lab_ms(), []
    base = of_contestant(part, rows, part.contestants[0])
    target = 1.05 * median(run["training"] for run in base)
    for name in part.contestants:
        runs = of_contestant(part, rows, name)
        if not runs:
            continue
        virtual = virtual_ms(part, runs)
        ms = taken.get(name, virtual)
        steps = [found[0] for run in runs if (found := kit.reached(run["curve"], target)) is not None]
        cells = [WORDS[name], f"{runs[0]['rate']:g}", len(runs)]
        cells += [
            kit.middle([run["held out"] for run in runs], ".3f"),
            kit.middle([run["right"] for run in runs], ".3f"),
        ]
        cells.append(kit.middle(steps, ".0f") if 2 * len(steps) > len(runs) else "not reached")
        cells += [f"{taken[name]:.0f}" if name in taken else "–", f"{virtual:.0f}", f"{ms * part.steps / 1e3:.0f}"]
        cells.append(f"{ms * median(steps) / 1e3:.0f}" if 2 * len(steps) > len(runs) else "–")
        lines.append(cells)
    head = ("contestant", "rate", "seeds", "held-out loss", "told right", f"steps to {target:.3g}")
    head += ("ms per step, lab", "in virtual time", f"seconds of {part.steps} steps", f"seconds to {target:.3g}")
    return kit.table(head, lines)


def theorem(found: list[Row]) -> str:
    """A line a quorum: what Theorem 5.2 allows and asks for, beside what ran; medians over seeds."""
    lines = []
    for name in dict.fromkeys(run["contestant"] for run in found):
        runs = [run for run in found if run["contestant"] == name]
        said = {key: median(run[key] for run in runs) for key in runs[0] if key not in ("contestant", "seed")}
        cells = [
            WORDS[name],
            f"{said['in a sum']:.1f}, {said['fewest']:.0f}",
            f"{said['late']:.2f}, {said['latest']:.0f}",
        ]
        cells += [f"{said['epsilon']:.2g}", f"{said['rate']:g}", f"{said['allowed']:.1e}"]
        lines.append([*cells, f"{said['rounds']:,.0f}", f"{said['asked']:,.0f}"])
    head = ("contestant", "workers in a sum: mean, fewest", "rounds late: mean, most", "mean squared gradient norm")
    return kit.table(
        (*head, "rate that ran", "rate allowed", "rounds that ran", "rounds of the theorem's order"), lines
    )


def draw(parts: dict[str, Part], content: dict[str, list[Row]]) -> None:
    """A row a part: loss over steps, and over seconds; seed 0 of six."""
    plt = pyplot()
    figure, axes = plt.subplots(len(parts), 2, figsize=(13, 4.6 * len(parts)), layout="constrained", squeeze=False)
    for (name, part), row in zip(parts.items(), axes, strict=True):
        taken = lab_ms()
        for axis, by_seconds in zip(row, (False, True), strict=True):
            ends, losses = [], []
            for who, (color, dash) in zip(DRAWN, LINES, strict=False):
                runs = of_contestant(part, content.get(name, []), who)
                if not runs:
                    continue
                unit = taken.get(who, virtual_ms(part, runs)) / 1e3 if by_seconds else 1.0
                curve = runs[0]["curve"][1:]
                axis.plot(
                    [unit * step for step, _ in curve], [loss for _, loss in curve], dash, color=color, linewidth=2
                )
                losses += [loss for _, loss in curve]
                ends.append((WORDS[who], unit * curve[-1][0], curve[-1][1], color))
            if losses:
                logarithmic(axis, "y", losses)
            quiet(axis, across="seconds" if by_seconds else "steps", up="training loss of the mean model")
            name_ends(axis, ends)
            axis.set_title(part.title, fontsize=10)
    figure.savefig(RESULT.with_suffix(".png"), dpi=100)
    plt.close(figure)


ABOUT = """`python -m benchmarks.long_runs measure`, then `write`. A thousand steps of 16 workers on 4 nodes, plain
SGD, batches of 16 a worker, in one process; the rate falls to nothing along half a cosine, from the best of the grid
in runs of 250 steps; who ran at two rates stands at the better in the end. Hop, eager-SGD and groups are decided by
their protocols in virtual time, where one worker takes 480 ms a step and the others 80. Networks are small
(networks.py); links, and the lab's milliseconds ([Prague's rows](papers/prague.md)), are those of a model of 2.2 MB;
where the lab has none, seconds are virtual time's. Medians [lowest-highest] over seeds. A skipped step of Hop's
counts, and a step of eager-SGD is a gradient of each worker, on average. Parallax's hybrid sums the same gradients as
All-Reduce."""

THEOREM = """`python -m benchmarks.long_runs theorem`. The theorem bounds the mean squared gradient norm over a run,
for a rate that is small enough. Here what ran is put into it: quorum, staleness, the largest second moment of a
gradient, and the smoothness, which is known for one layer. Its constants are left out where it gives an order. It is
no guide to a rate: what it allows is a millionth of what ran."""


def write(parts: dict[str, Part], content: dict[str, list[Row]]) -> None:
    blocks = [
        f"## {part.title[0].upper()}{part.title[1:]}\n\n{table(part, content.get(name, []))}"
        for name, part in parts.items()
    ]
    if "theorem" in content:
        told = THEOREM.replace("\n", " ")
        blocks.append(f"## eager-SGD's Theorem 5.2, on the convex task\n\n{told}\n\n{theorem(content['theorem'])}")
    kit.write(RESULT, "Long runs", ABOUT.replace("\n", " "), *blocks, "![losses](long_runs.png)")
    draw(parts, content)
