"""All workers from round to round in max-plus arithmetic, synchronously, late, or in a pipeline of gradients.

Write s[t] for when a worker begins to compute round t, c[t] for how long it does, e[t] for the end of its group's
operation of that round, and let `max` be over the group.

    synchronous   e[t] = max(s[t] + c[t]) + d[t]                             s[t+1] = e[t]
    late       e[t] = max(s[t]) + d[t]                                    s[t+1] = max(s[t] + c[t], e[t])
    pipeline   e[t] = max(s[t] + c[t], e[t−1]) + d[t]                     s[t+1] = max(s[t] + c[t], e[t−K+1])
    merge      e[t] = max(s[t] + w·c[t]) + d[t]                           s[t+1] = max(s[t] + c[t], e[t])

Late, an operation begins when the round begins, on the parameters that are there; in a pipeline when the round's
gradient is there, and the round ends without it: K−1 rounds later somebody waits. With K = 2 both are one recursion, in
which the operation of a pipeline belongs to the round before; they differ in the first round, which waits for nothing
in a pipeline (the first gradients are zero), and in the end, when a pipeline has operations left to wait for.
Merged late, an operation begins where the share w of a round is computed. Fragments that take turns are so many
operations, begun and awaited where their moves are (`topo.strategies.fragments`), perhaps a round later.
Warm-up rounds of a pipeline are synchronous and leave nothing under way.

Operations of one worker run one after the other, in order. One that is sent layer by layer begins as soon as a segment
is there (`Stage.before`), so that synchronously too it is partly hidden behind the computing.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from partreduce.topo.strategies.axes import Sync
from partreduce.topo.timing.stages import Stage

Floats = npt.NDArray[np.float64]


class Moments(NamedTuple):
    """When a round was begun, computed, when its operation began and ended, and when the next can begin."""

    start: Floats
    computed: Floats
    begin: Floats
    end: Floats
    finish: Floats


class Rounds:
    """Where all workers are, shape (..., num_workers); `next` takes them through a round.

    With `skip_warm_up` the first round is the first one behind a pipeline's warm-up.
    """

    def __init__(self, sync: Sync, shape: tuple[int, ...], *, skip_warm_up: bool = False) -> None:
        self.sync, self.count = sync, sync.warm_up if skip_warm_up else 0
        self.now: Floats = np.zeros(shape)
        self._last_end: Floats = np.zeros(shape)
        self._under_way: deque[tuple[int, Floats]] = deque()  # with the round that commits it
        self._parts: dict[int, Floats] = {}  # when each fragment's operation ends that is not awaited yet

    def next(self, stage: Stage, compute: Floats) -> Moments:
        """One round, with seconds of computing of shape (..., num_workers). O(workers) for each run."""
        if stage.turns:
            return self._in_turns(stage, compute)
        start, computed = self.now, self.now + compute
        due = self.sync.due(self.count)
        if due == self.count:
            late = self.sync.lag > 0 and not self.sync.delays_gradients
            if late or stage.segments is None:
                begin = stage.ready(start if late else computed)
                end = begin + stage.duration()
            else:
                begin = stage.ready(start + stage.first_ready(compute))
                end = stage.ready(start + stage.before(compute))
            self.now = np.maximum(computed, end)
            self._last_end = self.now
        else:
            begin = stage.ready(np.maximum(start + stage.first_ready(compute), self._last_end))
            busy = stage.ready(self._last_end) + stage.duration()
            end = np.maximum(stage.ready(start + stage.before(compute)) + stage.after(), busy)
            self._last_end = end
            self._under_way.append((due, end))
            is_due = self._under_way[0][0] == self.count
            self.now = np.maximum(computed, self._under_way.popleft()[1]) if is_due else computed
        self.count += 1
        return Moments(start, computed, begin, end, self.now)

    def _in_turns(self, stage: Stage, compute: Floats) -> Moments:
        start, begins, end = self.now, [], self.now
        before: float | Floats = 0.0
        for turn in stage.turns:
            self.now, before = self.now + compute * (turn.at - before), turn.at
            if not turn.is_awaited:
                begins.append(stage.ready(np.maximum(self.now, self._last_end)))
                self._last_end = self._parts[turn.part] = begins[-1] + stage.seconds_of(turn)
            elif turn.part in self._parts:  # the first round may await what no round has begun
                end = self._parts.pop(turn.part)
                self.now = np.maximum(self.now, end)
        self.count += 1
        return Moments(start, start + compute, begins[0], end, self.now)

    def drained(self) -> Floats:
        """When all is over: behind the last round, what is still under way is awaited.

        Also where it is then dropped: operations that have begun end, and no worker leaves before.
        """
        return np.maximum(self.now, self._last_end)
