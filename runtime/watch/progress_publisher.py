"""Progress publisher: the thread in which a watched worker says about twice a second what it does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from partreduce.runtime.transport.background import Background
from partreduce.runtime.watch.published_progress import Report

if TYPE_CHECKING:
    from partreduce.runtime.strategies.base import Run, Runner
    from partreduce.runtime.worker.ending import Ending

PUBLISH_SECONDS = 0.5
RESTS = "has ended its steps, and takes part in the others' rounds"


def publish(run: Run, runner: Runner, ending: Ending) -> None:
    """Let the launcher see this worker, where it watches; the thread ends with the run.

    A thread of its own, and not the heartbeat's: whatever goes wrong in here, the others still see signs of life.
    """
    if run.progress.begin():
        pause = threading.Event()
        Background(_tell, run, runner, ending, pause, name="partreduce-watch", stop=pause.set).start()


def _tell(run: Run, runner: Runner, ending: Ending, pause: threading.Event) -> None:
    beat = 0
    pace = 1 if run.progress.counts_rounds else run.pace
    said, since = run.reducer.heartbeat.last, run.progress.step
    while ending.is_running and not pause.is_set():
        beat += 1
        step, known = run.progress.step, said
        if (said := run.reducer.heartbeat.last) != known:
            since = step
        # Who waits for nobody has nothing to say for many steps, and what it said last is over.
        doing, waits = said if step == since else (f"computes step {step}", ())
        if rests := runner.rests:
            doing, waits = RESTS, ()
        run.progress.report(Report(beat, doing, waits, pace, runner.status(), rests))
        pause.wait(PUBLISH_SECONDS)
    run.progress.report(Report(beat + 1, f"is {ending.state}", (), pace, runner.status()))
    run.progress.end()
