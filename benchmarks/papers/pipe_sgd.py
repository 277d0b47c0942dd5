"""Pipe-SGD's rows: how much faster steps and losses come when gradients are late and travel small.

Two kinds of runs. *Timed* ones over shaped links say what a step takes. *Free* ones, over links as fast as the machine
and without sleeping, say how many steps a loss takes: that depends on the mathematics and the seed, not on the time.
Seconds to the loss are their product; one setting is also run to the loss over its links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.lab.contestants import RECOMMENDED
from benchmarks.lab.setting import REHEARSED_TARGETS, TARGETS, Setting
from benchmarks.lab.table import Row as Contestant
from benchmarks.papers import sums
from benchmarks.papers.cells import Apart, Cells, Experiment, LabPaper
from benchmarks.papers.rows import Curve, Results, Row, compared, each, ms, seconds, share_of, steps

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
SIXTEEN_ONLY = ("hierarchical", "hierarchical, int8", "pipeline, hierarchical, int8")
TIMED = tuple(name for name in WORDS if name not in ("pipeline, int8, warm-up", *RECOMMENDED_NAMES))
MAIN = (
    D_SYNC,
    "flat ring, int8",
    PS_SYNC,
    "pipeline",
    "pipeline, float16",
    "pipeline, int8",
    "pipeline, hierarchical, int8",
)
FREE = (
    D_SYNC,
    "flat ring, int8",
    "pipeline",
    "pipeline, int8",
    "pipeline, hierarchical, int8",
    "pipeline, int8, warm-up",
)

STEP, STEPS, SECONDS = "Milliseconds per step", "Steps to the loss", "Seconds to the loss"
STEP_D, STEP_PS = "Speed per step, D-Sync = 1", "Speed per step, PS-Sync = 1"
LOSS_D, LOSS_PS = "Speed to the loss, D-Sync = 1", "Speed to the loss, PS-Sync = 1"
LIMIT, CLOSE = "Of the compute-only limit", "Cells predicted within 15 %"
RECOMMENDATIONS = "Recommendations: loss of the planner's recommendations over seconds, 40 Mbit/s"

TO_TARGET = f"to a loss of {TARGETS['digits']:g}"
RECOMMENDED_SETTING = f"digits, 4x4, 40 Mbit/s, {TO_TARGET}"

COMPUTE = {(1, "200mbit"): 0.06, (1, "40mbit"): 0.16, (4, "200mbit"): 0.08, (4, "40mbit"): 0.16}
"""Seconds that a step computes, by workers per node and rate: about what the 8-bit sum takes on the wire."""
FREE_STEPS = 112


def _setting(task: str, size: int, rate: str) -> Setting:
    words = f"{task}, 4x{size}, {rate.removesuffix('mbit')} Mbit/s"
    return Setting(name=words, rate=rate, compute=COMPUTE[size, rate], task=task)


def _fitting(names: tuple[str, ...], size: int) -> tuple[str, ...]:
    return tuple(name for name in names if size > 1 or name not in SIXTEEN_ONLY)


def timed() -> list[Experiment]:
    """What a step takes: the paper's shape, then 16 workers, then the text model."""
    return [
        Experiment(
            settings=(_setting(task, size, rate),),
            shape=(4, size),
            contestants=_fitting(TIMED if task == "digits" else MAIN, size),
            steps=20 if rate == "200mbit" else 12,
            limit=16.0,
        )
        for task in ("digits", "text")
        for rate in ("200mbit", "40mbit")
        for size in (1, 4)
    ]


def free() -> list[Experiment]:
    return [
        Experiment(
            settings=(Setting(name=f"{task}, 4x{size}, free", rate="10gbit", compute=0.0, task=task),),
            shape=(4, size),
            contestants=_fitting(FREE, size),
            steps=FREE_STEPS,
            limit=240.0,
            target=REHEARSED_TARGETS[task],
        )
        for task in ("digits", "text")
        for size in (1, 4)
    ]


def to_loss() -> list[Experiment]:
    """One setting run to the loss over its links, to check the products; and the planner's recommendations."""
    names = (D_SYNC, "flat ring, int8", "pipeline", "pipeline, int8")
    waited = replace(_setting("digits", 1, "200mbit"), name="digits, 4x1, 200 Mbit/s, to the loss")
    recommended = replace(_setting("digits", 4, "40mbit"), name=RECOMMENDED_SETTING)
    target = REHEARSED_TARGETS["digits"]
    return [
        Experiment(settings=(recommended,), shape=(4, 4), contestants=RECOMMENDED_NAMES, at_once=True),
        Experiment(settings=(waited,), shape=(4, 1), contestants=names, target=target, repetitions=1),
    ]


def layered() -> list[Experiment]:
    """Equation 5 beside 6: gradients whole and layer by layer, where a network has layers of a size."""
    names = (
        D_SYNC,
        "flat ring, layers",
        "flat ring, int8",
        "pipeline",
        "pipeline, layers",
        "pipeline, int8",
        "pipeline, layers, int8",
    )
    settings = (_setting("ten layers", 1, rate) for rate in ("200mbit", "40mbit"))
    return [Experiment(settings=(one,), shape=(4, 1), contestants=names, steps=16, limit=20.0) for one in settings]


PARTS = {"lab": lambda: [*to_loss(), *timed()], "layers": layered, "free": free}


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
    return (*made.values(), *ratios, *_limits(kept))


def _limits(kept: dict[tuple[str, str], Row]) -> Iterator[Row]:
    """What D-Sync's steps would take if nothing but computing took time, over the seconds of the recommendations."""
    steps = kept.get((STEPS, f"digits, 4x4, loss {TARGETS['digits']:g}: {WORDS[D_SYNC]}"))
    for name in RECOMMENDED_NAMES:
        took = kept.get((SECONDS, f"{RECOMMENDED_SETTING}: {WORDS[name]}"))
        if steps is not None and took is not None:
            least = COMPUTE[4, "40mbit"]
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
    """How many cells the simulator predicts within 15 % from the profile alone."""
    found = (cells.prediction or {}).get("points", [])
    if found:
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
    parts=PARTS,
    rows=rows,
    curves=_curves,
    derived=derived,
    apart=Apart(parts=("sums",), measure=sums.measure_all, rows=sums.rows, share=0.2, most=4.0),
    predicts=True,
)
