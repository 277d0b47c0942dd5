"""Picture of a running job: one row a worker, and the same in one line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from partreduce.report.watch.history import Gap, Gaps, Speed
from partreduce.runtime.watch.published_progress import PublishedProgress, Report
from partreduce.runtime.watch.status import GapStatus

SILENT_SECONDS = 2.0
"""A worker says something twice a second; one that has not for so long is stopped, or holds the interpreter."""
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one worker."""

    rank: int
    step: int | None
    steps_per_second: float | None
    ahead: int | None
    """Rounds by which it is ahead of the slowest worker that still steps."""
    does: str
    code: int | None
    silent: float
    """Seconds since it last said anything."""
    gap: Gap | None = None
    largest: Gap | None = None
    status: GapStatus | None = None
    rests: bool = False
    """Whether it takes no more steps until all meet: the others go on, and it is not behind them."""

    @property
    def has_ended(self) -> bool:
        """Whether it is done: its process has ended well, or it only takes part in the others' rounds."""
        return self.code == 0 or self.rests

    @property
    def is_odd(self) -> bool:
        """Whether one would want to see it first: it failed, or gives no sign of life."""
        return bool(self.code) or (self.code is None and self.silent > SILENT_SECONDS)


class Picture:
    """What was seen of a job so far, read from its published progress.

    Args:
        published: where the workers say how far they are.
        gaps: to be kept, where the schedule bounds them.
        clock: seconds, monotonic.
    """

    def __init__(
        self, published: PublishedProgress, gaps: Gaps | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.published, self.gaps, self._clock = published, gaps, clock
        self.start = clock()
        self._speeds = [Speed() for _ in range(published.num_workers)]
        self._beats = [(0, self.start)] * published.num_workers

    def look(self) -> None:
        """See all steps; what comes between two looks shows neither in the largest gap nor in the speeds."""
        now = self._clock()
        if self.gaps is not None:
            self.gaps.add(self.published.places(), self.published.places())
        for speed, step in zip(self._speeds, self.published.steps(), strict=True):
            if step is not None:
                speed.add(now, step)

    def rows(self, codes: Mapping[int, int | None], stage: Callable[[int], str]) -> list[Row]:
        """All workers by rank; the arguments are those of `Outlet.look`."""
        now, steps = self._clock(), self.published.steps()
        reports = [self.published.report(rank) for rank in range(self.published.num_workers)]
        rounds = [_round(step, report) for step, report in zip(steps, reports, strict=True)]
        steps_on = [codes.get(rank) is None and not (report and report.rests) for rank, report in enumerate(reports)]
        slowest = min((r for rank, r in enumerate(rounds) if r is not None and steps_on[rank]), default=None)
        rows = []
        for rank, report in enumerate(reports):
            beat, known, round_ = 0 if report is None else report.beat, self._beats[rank], rounds[rank]
            if beat != known[0]:
                self._beats[rank] = known = (beat, now)
            gap = None if self.gaps is None else self.gaps.now[rank]
            largest = None if self.gaps is None else self.gaps.largest[rank]
            running, on = codes.get(rank) is None, steps_on[rank]
            rows.append(
                Row(
                    rank=rank,
                    step=steps[rank],
                    steps_per_second=self._speeds[rank].steps_per_second(now) if on else None,
                    ahead=None if round_ is None or slowest is None or not on else round_ - slowest,
                    does=_does(codes.get(rank), report, steps, partial(stage, rank)),
                    code=codes.get(rank),
                    silent=now - known[1] if report is not None else 0.0,
                    gap=gap if running else None,
                    largest=largest,
                    status=None if report is None else report.gap,
                    rests=running and not on,
                )
            )
        return rows

    @property
    def seconds(self) -> float:
        return self._clock() - self.start


def _round(step: int | None, report: Report | None) -> int | None:
    return None if step is None else step // (1 if report is None else report.pace)


def _does(code: int | None, report: Report | None, steps: list[int | None], stage: Callable[[], str]) -> str:
    """What a worker does, as a clause that follows "worker 3"."""
    if code is not None:
        return "has ended" if code == 0 else f"was killed by signal {code - 128}" if code > 128 else f"failed ({code})"
    if report is None:
        return stage() or "starts"
    if not report.waits:
        return report.doing
    # Of the many for whom it waits, those who are farthest behind are the reason.
    least = min((steps[rank] or 0 for rank in report.waits), default=0)
    late = [rank for rank in report.waits if (steps[rank] or 0) == least]
    named = ", ".join(map(str, late[:MAX_NAMED])) + (f" and {len(late) - MAX_NAMED} more" * (len(late) > MAX_NAMED))
    return f"{report.doing} (on worker{'s' * (len(late) > 1)} {named})"
