"""Hop's rows: the gain of gaps, backup workers, staleness and skipping if workers are slow sometimes, or one always.

16 workers on 4 nodes learn digits (a convolutional network), and the package of a paragraph of documentation (a support
vector machine with log loss), with momentum as in the paper. All take the same number of steps; their time, and when
the loss was reached, are read from the run. Next to a step's time is the physical limit: the same schedule and step
lengths in virtual time, with links and cores that cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from benchmarks.lab.campaign import Cells
from benchmarks.lab.contestants import SERVER, STANDARD, hop_name
from benchmarks.lab.plan import step_ms
from benchmarks.lab.results import Row as Contestant
from benchmarks.lab.setting import Setting
from benchmarks.papers.cells import LabPaper
from benchmarks.papers.rows import FIGURES, Curve, Row, each, ms, ratio, ratio_rows, row_words, steps, words

ALL_REDUCE = "flat ring"
GRAPHS = ("ring", "ring-based", "double-ring")
SPARSE = "ring-based"
"""The graph of the paper's figures that compare settings."""
EQUAL, RANDOM, SLOW, THIN = "all equal", "6× at random", "one 4× slow", "thin links"
BEST = ", each with its best rate"
"""Suffix of settings in which all contestants run at each of the same rates."""
STEP = "Milliseconds per step"
F12 = "Figure 12: steps where workers are 6× slower at random, over steps where all are equal"
F13 = "Figure 13: speed to the loss, BSP server = 1"
F15 = "Figure 15: steps to the loss where workers are 6× slower at random, standard = 1"
F16 = "Figures 16 and 17: speed per step where workers are 6× slower at random, standard = 1"
F17 = "Figures 14 and 17: speed to the loss where workers are 6× slower at random, standard = 1"
F18 = "Figure 18: steps where one worker is 4× slower, over steps where all are equal"
F19 = "Figure 19: speed to the loss where one worker is 4× slower, standard = 1"
F20 = "Figure 20: speed to the loss over thin links, ring-based = 1"
FEW = "4, 2 and 2 workers: svm, 100 Mbit/s"
"""8 workers on three machines, as in the paper's Figure 20."""
F21 = "Figure 21: spectral gaps of its graphs over 8 workers"

STEPS = 36
LATE = STEPS // 3
"""Steps that Figure 18 leaves out."""
TASKS = ("svm", "digits")

SKIPS = ("backup 1, skip 2", "backup 1, skip 10")
TOLD: dict[str, dict[str, float]] = FIGURES["hop"]

Block = dict[str, "Contestant"]


@cache
def setting_of(task: str, kind: str) -> Setting:
    """Return the setting of a task by the name of its kind; `THIN` has the rate in its name instead."""
    (found,) = (one for name, one in PAPER.settings.items() if name == f"{task}, {kind}" or _is_thin(name, task, kind))
    return found


def _is_thin(name: str, task: str, kind: str) -> bool:
    return kind == THIN and name.startswith(task) and name.endswith("Mbit/s")


def rows(cells: Cells) -> Iterator[Row]:
    blocks = cells.by_contestant()
    for task in TASKS:
        yield from _of_task(task, blocks)
    yield from ratio_rows(F20, blocks.get(FEW, {}), hop_name(SPARSE, STANDARD), setting=row_words(FEW))
    yield from _gap_rows()
    for where, block in blocks.items():
        yield from _step_rows(where, block)


def _of_task(task: str, blocks: dict[str, Block]) -> Iterator[Row]:
    alike, random, slow, thin = (blocks.get(setting_of(task, k).name, {}) for k in (EQUAL, RANDOM, SLOW, THIN))
    yield from _slow_rows(F12, task, RANDOM, random, alike)
    for kind, block in ((EQUAL, alike), (RANDOM, random)):
        ours = [name for name in block if gap_of(name)]
        yield from ratio_rows(F13, block, SERVER, setting=row_words(f"{task}, {kind}"), only=ours)
    for graph in GRAPHS:
        yield from _random_rows(task, graph, random)
    yield from _slow_rows(F18, task, SLOW, slow, alike)
    standard = hop_name(SPARSE, STANDARD)
    yield from ratio_rows(
        F19, slow, standard, setting=row_words(task), paper=lambda name: TOLD["printed_19"].get(gap_of(name))
    )
    for kind, figure in ((RANDOM, F17), (SLOW, F19)):
        block = blocks.get(f"{task}, {kind}{BEST}", {})
        yield from ratio_rows(figure, block, standard, setting=row_words(f"{task}{BEST}"))
    yield from ratio_rows(F20, thin, standard, setting=row_words(setting_of(task, THIN).name))


def _random_rows(task: str, graph: str, block: Block) -> Iterator[Row]:
    """Yield one graph's settings relative to its standard one, with randomly slow workers."""
    standard, setting = hop_name(graph, STANDARD), row_words(task)
    ours = [name for name in block if name.startswith(f"Hop {graph}, ") and name != standard]

    def predict(name: str) -> float | None:
        mine, theirs = (physics(task, RANDOM, one, len(block[name].cells)) for one in (name, standard))
        return theirs / mine if mine and theirs else None

    yield from ratio_rows(
        F16,
        block,
        standard,
        ms,
        setting=setting,
        only=ours,
        predicted=predict,
        paper=lambda name: TOLD["printed_16"].get(gap_of(name)),
        aim=lambda name: TOLD["aims_16"].get(gap_of(name)),
    )
    usual = steps(block[standard]) if standard in block else []
    for name in ours:
        if usual and steps(block[name]):
            yield ratio(steps(block[name]), usual, figure=F15, setting=setting(name))
    yield from ratio_rows(F17, block, standard, setting=setting, only=ours)


def _step_rows(where: str, block: Block) -> Iterator[Row]:
    task, _, kind = where.partition(", ")

    def predict(name: str) -> float | None:
        if where == FEW:  # physics knows nodes of one size
            return None
        return physics(task, THIN if kind.endswith("Mbit/s") else kind, name, len(block[name].cells))

    yield from each(STEP, block, ms, "milliseconds", setting=row_words(where), predicted=predict)


def gap_of(name: str) -> str:
    """Return the iteration gap in a contestant's name; "" for others than Hop's."""
    return name.partition(", ")[2] if name.startswith("Hop ") else ""


def _late_ms(row: Contestant) -> list[float]:
    """Return milliseconds per step after the first third: at first workers far from a slow one are not delayed."""
    found = []
    for cell in row.cells:
        later = [point for point in cell.curve if point[0] >= LATE]
        if len(later) > 1:  # a cell that ran out of time may have none
            found.append(1e3 * (later[-1][1] - later[0][1]) / (later[-1][0] - later[0][0]))
    return found


def _slow_rows(figure: str, task: str, kind: str, block: Block, alike: Block) -> Iterator[Row]:
    """Yield a contestant's step time over that of its graph's standard setting (or its own) with equal workers."""
    papers, aims, of, after = (
        ({}, {}, ms, 0) if figure is F12 else (TOLD["printed_18"], TOLD["aims_18"], _late_ms, LATE)
    )
    for name, row in block.items():
        gap = gap_of(name)
        graph = name.removeprefix("Hop ").partition(", ")[0]
        same = alike.get(hop_name(graph, STANDARD) if gap else name)
        if same is None or not of(row) or not of(same) or (figure is F12 and gap not in ("", STANDARD)):
            continue
        slowed = physics(task, kind, name, len(row.cells), after)
        yield ratio(
            of(row),
            of(same),
            figure=figure,
            setting=f"{task}: {words(name)}",
            paper=papers.get(gap),
            aim=aims.get(gap),
            predicted=slowed / (1e3 * setting_of(task, kind).compute) if slowed else None,
        )


def _gap_rows() -> Iterator[Row]:
    """Yield the paper's spectral gaps, computed from its graphs."""
    from partreduce.topo.graphs.named import hop_figure_21
    from partreduce.topo.graphs.weights import weigh
    from partreduce.topo.metrics import hop_gap

    for name, printed in TOLD["printed_gaps"].items():
        gap = hop_gap(weigh(hop_figure_21(name)))
        fields: dict[str, Any] = {"figure": F21, "setting": f"graph {name}", "unit": "share", "paper": printed}
        yield Row(measured=gap, low=gap, high=gap, runs=1, **fields)


def physics(task: str, kind: str, name: str, runs: int, after: int = 0) -> float | None:
    """Return milliseconds per step if only computing takes time."""
    return step_ms(name, setting_of(task, kind), (4, 4), STEPS, runs, after=after)


def _curves(cells: Cells) -> Iterator[Curve]:
    """Yield loss over steps and over seconds: the first run of each headline with slow workers."""
    headlines = {made.setting.name: made.contestants for made in PAPER.parts["headlines"]}
    shown = {where: names for where, names in headlines.items() if not where.endswith(EQUAL)}
    for where, block in cells.blocks().items():
        for row in block:
            if row.contestant not in shown.get(where, ()):
                continue
            plot = f"{where.replace(', ', ' ').replace('×', 'x')}: loss over seconds, and over steps"
            yield Curve.of_run(plot, words(row.contestant), row.cells[0])


PAPER = LabPaper(name="hop", rows=rows, curves=_curves, bars=(STEP,))
