"""Measured: what a worker's recorder knows of its computing and of its averages, for whoever plans anew."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from partreduce.runtime.recorder import Operation

LEAST_STEPS = 8
"""Steps of each worker, and averages of all, from which on what they took is told from chance."""
AVERAGE = "average"
"""What the recorder calls the average of a round."""


def measured(operations: Sequence[Operation], after: int) -> dict[str, Any]:
    """What the rounds after this one took of this worker.

    `steps` were computed in `compute` seconds, in which it was in no operation. `averages` are [round, members, bytes,
    seconds], of which some may be spent waiting: who comes last to an average has waited for nobody.
    """
    done = [one for one in operations if one.round > after and one.end is not None]
    averages = [one for one in done if one.kind == AVERAGE and one.outcome == "ok"]
    steps, compute = 0, 0.0
    for before, next_ in pairwise(averages):
        between = [one for one in done if before.index < one.index < next_.index]
        if next_.step > before.step and all(one.kind == "confirm" for one in between):
            busy = sum(one.end - one.start for one in between if one.end is not None)
            assert before.end is not None, "as asked"
            steps += next_.step - before.step
            compute += next_.start - before.end - busy
    listed = [[one.round, list(one.members), one.num_bytes, (one.end or 0.0) - one.start] for one in averages]
    return {"steps": steps, "compute": compute, "averages": listed}
