"""Pipe-SGD's rows: how much faster steps and losses come when gradients are late and travel small.

Bare sums are measured apart (`--only sums`): what one sum of all workers' gradients takes by its algorithm and codec.
Four workers on four nodes, as in the paper, have flat sums only. All ways are set up in the same processes and take
turns, so that a repetition of one stands beside one of every other. A time is from the last worker's start to the last
one's end. Measured are the bare sums, of an array by a communicator of the run-time, and whole calls of
`DistributedOptimizer.step()`, which also pack gradients, compare tags and take an SGD step of 548,074 parameters.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks import kit
from benchmarks.kit import Way, spans, take_turns
from benchmarks.lab.contestants import RECOMMENDED
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.setting import TARGETS
from benchmarks.papers.cells import Apart, Cells, LabPaper
from benchmarks.papers.rows import Curve, Results, Row, compared, each, ms, seconds, share_of, steps, value
from benchmarks.transport import PLAIN, SUMS, joined, sums
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Transport

if TYPE_CHECKING:
    from benchmarks.lab.crew import Lab
    from benchmarks.lab.setting import Job
    from benchmarks.papers.cells import Kept
    from benchmarks.transport import Meet


os.environ.setdefault("OMP_NUM_THREADS", "1")


BEST = "hierarchical, 8 bit across nodes"
WAYS = {
    name: SUMS[name]
    for name in (
        PLAIN,
        "flat ring, bfloat16",
        "flat, 8 bit",
        "hierarchical, fp32",
        "hierarchical, bfloat16 across nodes",
        BEST,
    )
}
BARE, IN_STEPS = "a bare sum", "a step without computing"
BLOCKS = [
    (4, "200mbit", BARE),
    (1, "200mbit", BARE),
    (4, "80mbit", BARE),
    (4, "200mbit", IN_STEPS),
    (4, "80mbit", IN_STEPS),
]
"""Workers on each of 4 nodes, links, and what is measured."""
AIMS = {4: (BEST, 3.0), 1: ("flat, 8 bit", 2.5)}
"""What a way is to reach over the plain one as a bare sum, by the workers on a node."""
NUMBER = 548_074
TURNS = 12
MOST_SECONDS = 150.0


def measure(job: Job, node: int) -> None:
    """One worker: takes its part in every way's sums, in turns, and leaves its times in a file."""
    import torch

    from benchmarks.lab.worker import use_environment

    kit.end_after(MOST_SECONDS + 30)
    rank = use_environment(job, node)
    torch.manual_seed(rank)
    end = time.monotonic() + job.limit
    if job.options["what"] == BARE:
        world, meet = joined()
        ways = sums(world, NUMBER * 4e-6, job.num_nodes, ways_of(job.workers_per_node))
    else:
        ways, meet = _in_steps(job)
    times = take_turns(ways, meet, job.options["turns"], warm_up=1, end=end)  # the first connects the groups
    (job.path / f"sums-{rank:03d}.json").write_text(json.dumps(times))
    meet(0.0)


def _in_steps(job: Job) -> tuple[dict[str, Way], Meet]:
    import torch

    import partreduce

    everyone, gradient = range(job.num_workers), torch.randn(NUMBER)

    def meet(word: float) -> float:
        said = torch.tensor([word])
        partreduce.p_reduce(said, everyone, timeout=60)
        return float(said)

    def way(schedule: str) -> Way:
        model = torch.nn.Linear(NUMBER, 1, bias=False)
        sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
        optimizer = partreduce.DistributedOptimizer(sgd, model, schedule, timeout=60.0)

        def prepared(_: int) -> Callable[[], object]:
            model.weight.grad = gradient.clone().view_as(model.weight)
            return optimizer.step

        return prepared

    return {name: way(path) for name, path in job.options["schedules"].items()}, meet


def ways_of(each: int) -> dict[str, Transport]:
    """Without several workers on a node sums have no stages."""
    return {name: how for name, how in WAYS.items() if each > 1 or how.algorithm is AllReduceAlgorithm.RING}


def figures(what: str, each: int) -> tuple[str, str]:
    """The names of the two figures: milliseconds, and over the plain ring."""
    over = f"Over the flat fp32 ring: {what}" + ", 4 workers on 4 nodes" * (each == 1)
    return f"Milliseconds of {what}, 2.19 MB, {4 * each} workers on 4 nodes", over


def measure_all(minutes: float, _: str | None, kept: Kept) -> None:
    """Both kinds of sums over all links, within the time."""
    from benchmarks.lab.crew import standing
    from partreduce.topo.cluster import Cluster
    from partreduce.topo.document.writer import write_schedule
    from partreduce.topo.schedule import Schedule
    from partreduce.topo.strategies.allreduce import AllReduce

    with standing(4) as lab:
        schedules = {}
        for index, (name, how) in enumerate(WAYS.items()):
            schedules[name] = str(lab.scratch / f"way-{index}.json")
            write_schedule(schedules[name], Schedule(f"way-{index}", Cluster.regular(4, 4), AllReduce(transport=how)))
        for each, rate, what in BLOCKS:
            options = {"what": what, "schedules": schedules, "turns": TURNS}
            ms = _measured(lab, each, rate, options, 60 * minutes / len(BLOCKS))
            kept.found.append({"each": each, "rate": rate, "what": what, "ms": ms})
            kept.write()


def sums_rows(kept: Kept) -> list[Row]:
    return [row for one in kept.found for row in rows_of(one["each"], one["rate"], one["what"], one["ms"])]


def _measured(lab: Lab, each: int, rate: str, options: dict[str, Any], limit: float) -> dict[str, list[float]]:
    lab.shape(rate)
    job = lab.job(rate, "sums", each, limit=min(MOST_SECONDS, limit), options=options)
    if any(lab.crew.run(job)):
        raise RuntimeError(f"sums: {(job.path / 'node-0.log').read_text()[-2000:]}")
    return spans([json.loads(path.read_text()) for path in sorted(job.path.glob("sums-*.json"))])


def rows_of(each: int, rate: str, what: str, found: dict[str, list[float]]) -> list[Row]:
    """The ratio of every way's turns to the plain ring's, in pairs as they stood side by side; bare ones in ms, too."""
    words, (figure, over) = f"{rate.removesuffix('mbit')} Mbit/s", figures(what, each)
    way, least = AIMS[each]
    bare = found if what == BARE else {}
    sums_rows = [value(ms, figure=figure, setting=f"{words}: {name}", unit="milliseconds") for name, ms in bare.items()]
    sums_rows += [
        value(
            [theirs / ours for theirs, ours in zip(found[PLAIN], found[name], strict=True)],
            figure=over,
            setting=f"{words}: {name}",
            aim=least if name == way and what == BARE else None,
        )
        for name in found
        if name != PLAIN
    ]
    return sums_rows


D_SYNC, PS_SYNC, CODED_RECOMMENDED = "flat ring", "server on one host, synchronous", f"{RECOMMENDED}, codec"
PLAIN_RECOMMENDED, RARE = f"{RECOMMENDED}, codec left out", "node-then-all 23, hierarchical"
RECOMMENDED_NAMES = (RECOMMENDED, CODED_RECOMMENDED, PLAIN_RECOMMENDED, RARE, f"{RARE}, int8")
WORDS = {
    D_SYNC: "D-Sync",
    "flat ring, float16": "D-Sync + 16 bit",
    "flat ring, int8": "D-Sync + 8 bit",
    "flat ring, layers": "D-Sync, layer by layer",
    "hierarchical": "hierarchical fp32",
    "hierarchical, int8": "hierarchical + 8 bit",
    PS_SYNC: "PS-Sync",
    f"{PS_SYNC}, int8": "PS-Sync + 8 bit",
    "pipeline": "Pipe",
    "pipeline, layers": "Pipe, layer by layer",
    "pipeline, float16": "Pipe + 16 bit",
    "pipeline, int8": "Pipe + 8 bit",
    "pipeline, layers, int8": "Pipe + 8 bit, layer by layer",
    "pipeline, hierarchical, int8": "Pipe + 8 bit, hierarchical",
    "pipeline, int8, warm-up": "Pipe + 8 bit, 8 steps of warm-up",
    RECOMMENDED: "planner's recommendation",
    CODED_RECOMMENDED: "planner's recommendation with a codec",
    PLAIN_RECOMMENDED: "the same recommendation without its codec",
    RARE: "node-then-all 23",
    f"{RARE}, int8": "node-then-all 23 + 8 bit across nodes",
}
SAME_STEPS = {
    WORDS["flat ring, layers"]: WORDS[D_SYNC],
    WORDS["hierarchical"]: WORDS[D_SYNC],
    WORDS["flat ring, float16"]: WORDS[D_SYNC],
    WORDS["hierarchical, int8"]: WORDS["flat ring, int8"],
    WORDS["pipeline, float16"]: WORDS["pipeline"],
    WORDS[PS_SYNC]: WORDS[D_SYNC],
    WORDS[f"{PS_SYNC}, int8"]: WORDS["flat ring, int8"],
    WORDS["pipeline, layers"]: WORDS["pipeline"],
    WORDS["pipeline, layers, int8"]: WORDS["pipeline, int8"],
}
"""Whose steps to the loss are another's, of the same mathematics but for rounding to 16 bits or at other places."""
LATE = tuple(name for name in WORDS if name.startswith("pipeline"))

STEP, STEPS, SECONDS = "Milliseconds per step", "Steps to the loss", "Seconds to the loss"
STEP_D, STEP_PS = "Speed per step, D-Sync = 1", "Speed per step, PS-Sync = 1"
LOSS_D, LOSS_PS = "Speed to the loss, D-Sync = 1", "Speed to the loss, PS-Sync = 1"
PIECES = "Figure 4: milliseconds of a step, by what they go into"
PIECES_SETTING = "digits, 4x1, 200 Mbit/s"
ALONE = {"": "flat ring, fp32", " + 16 bit": "flat ring, bfloat16", " + 8 bit": "flat, 8 bit"}
"""The bare sum of each codec; float16 and bfloat16 travel alike."""
LIMIT, CLOSE = "Of the compute-only limit", "Cells predicted within 15 %"
RECOMMENDATIONS = "Recommendations: loss of the planner's recommendations over seconds, 40 Mbit/s"

TO_TARGET = f"to a loss of {TARGETS['digits']:g}"
RECOMMENDED_SETTING = f"digits, 4x4, 40 Mbit/s, {TO_TARGET}"


def rows(cells: Cells) -> Iterator[Row]:
    """All that the cells say by themselves; `derived` says the rest."""
    for where, block in cells.by_contestant().items():
        named = {name: row for name, row in block.items() if name in WORDS}
        if where.endswith("free"):
            yield from _steps_rows(where, named)
        elif where.endswith(("to the loss", TO_TARGET)):
            yield from each(SECONDS, named, seconds, "seconds", setting=_words(where))
        if where.endswith(("bit/s", TO_TARGET)):
            yield from _step_rows(where, named, cells)
        if where.endswith(TO_TARGET):
            yield from each(STEP, named, _later_ms, "milliseconds", setting=_words(f"{where}, after 4 steps"))
    yield from _close(cells)


def _words(where: str) -> Callable[[str], str]:
    return lambda name: f"{where}: {WORDS[name]}"


def _later_ms(row: Contestant) -> list[float]:
    """Steps behind the first snapshot: without what a strategy does once, at its start."""
    ends = [(cell.curve[1], cell.curve[-1]) for cell in row.cells]
    return [1e3 * (last[1] - first[1]) / (last[0] - first[0]) for first, last in ends]


def _step_rows(where: str, named: dict[str, Contestant], cells: Cells) -> Iterator[Row]:
    """Milliseconds per step with their prediction, and how many of them fit into one of D-Sync's and of PS-Sync's."""
    known, called = cells.predictions(), _words(where)
    yield from each(STEP, named, ms, "milliseconds", setting=called, predicted=lambda name: known.get((where, name)))
    for figure, theirs, paper in ((STEP_D, D_SYNC, (2.0, 3.2)), (STEP_PS, PS_SYNC, (4.0, 5.4))):
        yield from compared(figure, named, theirs, ms, setting=called, only=LATE, paper=paper)


def _steps_rows(where: str, named: dict[str, Contestant]) -> Iterator[Row]:
    yield from each(STEPS, named, steps, "steps", setting=_words(where.removesuffix(", free")))
    least = TARGETS["digits"]
    if where.startswith("digits, 4x4") and D_SYNC in named:
        base = {D_SYNC: replace(named[D_SYNC], target=least)}
        yield from each(STEPS, base, steps, "steps", setting=_words(f"digits, 4x4, loss {least:g}"))


def derived(found: Results) -> tuple[Row, ...]:
    """Seconds to the loss from the steps to it and the seconds of a step, and what follows from them."""
    kept = {row.key: row for row in found.rows}
    made: dict[tuple[str, str], Row] = {}
    for row in found.rows:
        where, _, name = row.setting.partition(": ")
        steps = kept.get((STEPS, f"{where.rpartition(', ')[0]}: {SAME_STEPS.get(name, name)}"))
        if row.figure != STEP or steps is None:
            continue
        made[where, name] = Row(
            figure=SECONDS,
            setting=row.setting,
            measured=steps.measured * row.measured / 1e3,
            low=steps.low * row.low / 1e3,
            high=steps.high * row.high / 1e3,
            runs=min(steps.runs, row.runs),
            unit="seconds",
            derived=True,
        )
    ratios = [
        _ratio(figure, where, name, made[where, theirs], ours, paper)
        for figure, theirs, paper in ((LOSS_D, WORDS[D_SYNC], (2.0, 3.2)), (LOSS_PS, WORDS[PS_SYNC], (4.0, 5.4)))
        for (where, name), ours in made.items()
        if name.startswith("Pipe") and not name.endswith("layer by layer") and (where, theirs) in made
    ]
    return (*made.values(), *ratios, *_limits(kept), *_pieces(kept))


def _pieces(kept: dict[tuple[str, str], Row]) -> Iterator[Row]:
    """Computing, the sum as long as it takes alone, and what is left of a step: under Pipe less than nothing.

    There the sum runs beside computing, so that much of it is hidden.
    """
    computing = 1e3 * PAPER.settings[PIECES_SETTING].compute
    for protocol in ("D-Sync", "Pipe"):
        for codec, bare in ALONE.items():
            name = f"{PIECES_SETTING}: {protocol}{codec}"
            step, alone = kept.get((STEP, name)), kept.get((figures(BARE, 1)[0], f"200 Mbit/s: {bare}"))
            if step is None or alone is None:
                continue
            yield replace(step, figure=PIECES, setting=name, predicted=None, commit="", derived=True)
            fields: dict[str, Any] = {"figure": PIECES, "unit": "milliseconds", "derived": True}
            pieces = {"computing": (computing,) * 3, "the sum, alone": (alone.measured, alone.low, alone.high)}
            pieces["the rest"] = (
                step.measured - computing - alone.measured,
                step.low - computing - alone.high,
                step.high - computing - alone.low,
            )
            for piece, (measured, low, high) in pieces.items():
                runs = min(step.runs, alone.runs)
                yield Row(setting=f"{name}: {piece}", measured=measured, low=low, high=high, runs=runs, **fields)


def _limits(kept: dict[tuple[str, str], Row]) -> Iterator[Row]:
    """What D-Sync's steps would take if nothing but computing took time, over the seconds of the recommendations."""
    steps = kept.get((STEPS, f"digits, 4x4, loss {TARGETS['digits']:g}: {WORDS[D_SYNC]}"))
    for name in RECOMMENDED_NAMES:
        took = kept.get((SECONDS, f"{RECOMMENDED_SETTING}: {WORDS[name]}"))
        if steps is not None and took is not None:
            least = PAPER.settings[RECOMMENDED_SETTING].compute
            yield Row(
                figure=LIMIT,
                setting=f"{RECOMMENDED_SETTING}: {WORDS[name]}",
                measured=steps.measured * least / took.measured,
                low=steps.low * least / took.high,
                high=steps.high * least / took.low,
                runs=min(steps.runs, took.runs),
                unit="share",
                aim=0.9,
            )


def _ratio(figure: str, where: str, name: str, theirs: Row, ours: Row, paper: tuple[float, float]) -> Row:  # noqa: PLR0917
    return Row(
        figure=figure,
        setting=f"{where}: {name}",
        paper=paper,
        measured=theirs.measured / ours.measured,
        low=theirs.low / ours.high,
        high=theirs.high / ours.low,
        runs=min(theirs.runs, ours.runs),
        derived=True,
    )


def _close(cells: Cells) -> Iterator[Row]:
    """How many cells the simulator predicts within 15 % from the profile alone, where there are several settings."""
    found = (cells.prediction or {}).get("points", [])
    if len({point["setting"] for point in found}) > 1:
        close = [abs(p["predicted"] / p["measured"] - 1) <= 0.15 for p in found]
        yield share_of(close, figure=CLOSE, setting="from the profile alone", aim=0.9)


def _curves(cells: Cells) -> Iterator[Curve]:
    """Loss over seconds of the recommendations."""
    for where, block in cells.blocks().items():
        for row in block if where.endswith(TO_TARGET) else ():
            for seed, cell in enumerate(row.cells):
                _, at, losses = zip(*cell.curve, strict=True)
                yield Curve(plot=RECOMMENDATIONS, name=f"{WORDS[row.contestant]}, seed {seed}", at=at, losses=losses)


PAPER = LabPaper(
    name="pipe-sgd",
    rows=rows,
    curves=_curves,
    derived=derived,
    apart=Apart(parts=("sums",), measure=measure_all, rows=sums_rows, share=0.2, most=4.0),
    predicts=True,
)
