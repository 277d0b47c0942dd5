"""Figure 9 of eager-SGD's paper as rows: how long calls of a sum take where workers come one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from statistics import mean, median
from typing import Any

from benchmarks.papers.cells import Kept
from benchmarks.papers.rows import Curve, Row, ratio, value
from benchmarks.papers.skew import FOUND, HALF, MAJORITY, MODES, SOLO, SYNCHRONOUS, Found, Trial, measure

FIGURE = "Figure 9: latency of a synchronous sum over that of a partial one"
CALLS = "Figure 9: milliseconds that a call takes"
ACTIVE = "Figure 9: processes whose gradients of the same call are in a sum"
OVER_MAJORITY = "Figure 9: latency of a majority over that of half of the workers"
PLOT = "Figure 9: latency of a synchronous sum over that of a partial one, over skew"

SKEW, OTHER = 50.0, 20.0
"""Milliseconds from one worker's call to the next one's: of the smallest arrays, and of larger ones."""
SKEWS = (1.0, 5.0, OTHER)
"""What the curve has besides."""
SIZES = {64: "64 B", 1 << 16: "64 KiB", 1 << 20: "1 MiB", 8 << 20: "8 MiB"}
ITERATIONS = {SYNCHRONOUS: 6, SOLO: 9, MAJORITY: 21, HALF: 9}
FEWER = 12
"""Calls of larger arrays and of the curve, at most."""
PAPER = {SOLO: 53.32, MAJORITY: 2.46}
AIM_OF_HALF = 1.4
PAPER_ACTIVE = {SOLO: 1.0, MAJORITY: 16.0}


def measure_all(minutes: float, _: str | None, kept: Kept) -> None:
    """All trials that the time is enough for."""
    found, notes = measure(trials(), 60 * minutes)
    kept.found += [asdict(one) for one in found]
    kept.notes += notes


def trials() -> list[Trial]:
    """What Figure 9 needs, the most important first."""
    main = [(processes, 64, SKEW, MODES) for processes in (32, 16, 64)]
    curve = [(32, 64, skew, MODES[:3]) for skew in SKEWS]
    sizes = [(processes, size, OTHER, MODES) for size in (1 << 20, 8 << 20) for processes in (32, 16)]
    return [
        Trial(processes=processes, size=size, skew=skew, mode=mode, iterations=_iterations(mode, skew))
        for processes, size, skew, modes in (*main, *curve, *sizes, (32, 1 << 16, OTHER, MODES))
        for mode in modes
    ]


def _iterations(mode: str, skew: float) -> int:
    return ITERATIONS[mode] if skew == SKEW else min(FEWER, ITERATIONS[mode])


def limit(mode: str, processes: int) -> float | None:
    """The gain where only skew is waited for; solo's has none."""
    if mode == MAJORITY:
        return 3 * processes / (processes + 1)
    if mode == HALF:
        last = processes // 2 - 1  # the rank whose call completes the quorum
        return (processes - 1) / 2 / (last * (last + 1) / 2 / processes)
    return None


def _by_setting(kept: Kept) -> dict[tuple[int, int, float], dict[str, Found]]:
    blocks: dict[tuple[int, int, float], dict[str, Found]] = {}
    for each in map(FOUND.validate_python, kept.found):
        trial = each.trial
        blocks.setdefault((trial.processes, trial.size, trial.skew), {})[trial.mode] = each
    return blocks


def thirds(values: Sequence[float]) -> list[float]:
    """Means of three runs of iterations, so that what varies from draw to draw does not look like spread."""
    size = max(1, len(values) // 3)
    parts = [values[place : place + size] for place in range(0, 3 * size, size)]
    return [sum(part) / len(part) for part in parts if part]


def _of(calls: Sequence[float], **fields: Any) -> Row:  # noqa: ANN401 - fields of Row
    return _around(value(thirds(calls), **fields), mean(calls))


def _ratio(theirs: Found, ours: Found, **fields: Any) -> Row:  # noqa: ANN401 - fields of Row
    return _around(ratio(thirds(theirs.milliseconds), thirds(ours.milliseconds), **fields), _gain(theirs, ours))


def _around(row: Row, middle: float) -> Row:
    """A row with the ends of thirds of the iterations, and the mean of all of them."""
    return replace(row, measured=middle, low=min(row.low, middle), high=max(row.high, middle))


def _gain(theirs: Found, ours: Found) -> float:
    return mean(theirs.milliseconds) / mean(ours.milliseconds)


def rows(kept: Kept) -> Iterator[Row]:
    """Latencies, their ratios, and active processes."""
    blocks = _by_setting(kept)
    for (processes, size, skew), block in blocks.items():
        where = f"{processes} processes, {SIZES[size]}, {skew:g} ms"
        base, majority = block.get(SYNCHRONOUS), block.get(MAJORITY)
        for mode, each in block.items():
            setting = f"{where}: {mode}"
            if base is not None and mode != SYNCHRONOUS:
                yield _ratio(base, each, figure=FIGURE, setting=setting, **_said(mode, processes, size, skew))
            yield _of(each.milliseconds, figure=CALLS, setting=setting, unit="milliseconds")
            if mode != SYNCHRONOUS:
                paper = PAPER_ACTIVE.get(mode) if processes == 32 else None
                yield _of(each.active, figure=ACTIVE, setting=setting, unit="workers", paper=paper)
        if majority is not None and HALF in block:
            limits = limit(HALF, processes), limit(MAJORITY, processes)
            assert limits[0] is not None
            assert limits[1] is not None
            predicted = limits[0] / limits[1]
            yield _ratio(
                majority, block[HALF], figure=OVER_MAJORITY, setting=where, aim=AIM_OF_HALF, predicted=predicted
            )


def _said(mode: str, processes: int, size: int, skew: float) -> dict[str, Any]:
    """What the paper printed of 32 processes, what is aimed at, and what is to be expected."""
    known = limit(mode, processes)
    usual = skew == SKEW and size == min(SIZES)
    aims = {SOLO: 53.0 if processes == 32 else None, MAJORITY: known and 0.95 * known}
    return {
        "paper": PAPER.get(mode) if processes == 32 and usual else None,
        "aim": aims.get(mode) if usual else None,
        "predicted": known,
    }


def curves(kept: Kept) -> Iterator[Curve]:
    """The gain over skew, of 32 processes and 64 bytes; beside it over all skew ÷ what a sum takes."""
    blocks = {where: block for where, block in _by_setting(kept).items() if where[:2] == (32, 64)}
    spare = [
        mean(block[SYNCHRONOUS].milliseconds) - 31 * where[2] / 2
        for where, block in blocks.items()
        if SYNCHRONOUS in block
    ]
    if not spare:
        return
    sum_ms = max(0.1, median(spare))
    for mode in (SOLO, MAJORITY, HALF):
        known = sorted(
            (where[2], _gain(block[SYNCHRONOUS], block[mode]))
            for where, block in blocks.items()
            if mode in block and SYNCHRONOUS in block
        )
        if len(known) > 1:
            skews, gains = zip(*known, strict=True)
            over = tuple(32 * skew / sum_ms for skew in skews)
            yield Curve(plot=PLOT, name=mode, at=skews, losses=gains, steps=over)
