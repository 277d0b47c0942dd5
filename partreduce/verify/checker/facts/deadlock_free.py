"""`deadlock-free`, by the rules of rounds: every group operation completes, whatever the speeds of the workers.

*Theorem.* Give every group operation one tick, the same at all its members and strictly increasing along each worker's
list of operations. Then all operations complete. For of all unfinished operations take one with the smallest tick: what
its members issue before it carries smaller ticks, so it is finished, and all members are ready for it.

A worker may issue operations before earlier ones are finished (a pipeline has up to `lag` in flight), cut one into
several that it issues in one order (the layers of a gradient, the buckets of a model, the stages of a sum), and hand
some to a thread that carries them out in that order on communicators of its own, while others go on those of the first
thread. *The theorem still holds* if nobody waits for an operation before it was issued, and all members issue in the
same order. For let the ticks be the places in the order of issue, the same for all (stages of one sum lie between it
and the next one). What a member waits for, by itself or in a thread, before it comes to the operation with the smallest
unfinished tick was issued before, carries a smaller tick, and is finished. So it comes to that operation, in either
thread; operations that follow are on communicators or in threads of their own or wait behind it; and it completes.

The ticks here are canonical: 1 + the largest tick that a member had before. One tick per operation is enough for a
block of a rule, whose groups are one operation each: all of them get the tick of the block, and a worker meets at most
one. Period q adds q times `height`, the largest tick. The operations of the prologue hold all workers and come first.

**Weighted graphs.** An operation is one worker's exchange with its neighbors, and that of round t carries the tick
t + 1, whatever the edges. Of all unfinished exchanges take one with the smallest tick: everybody has finished the
rounds before, so its neighbors enter the same round, and what they send to one another arrives.

*The end:* if every worker carries out the same number of rounds, then every operation has all its members, and by the
same argument the last ones complete too.

That the ticks can be computed is the proof; `height` is what was computed. *Assumed of the program:* each worker issues
the operations of its rounds in order (a late average too), members meet by round number (so steps per round do not
matter), those of one round are cut and numbered in the same way by all, and all workers carry out the same number of
rounds. Groups are disjoint (`conflict-free`).
"""

from __future__ import annotations

from itertools import repeat

from ..refusal import Work
from ..schedule import Numbers, Schedule


def numbers(schedule: Schedule, _: Work) -> Numbers:
    """`height`: the largest tick of a period."""
    if schedule.form == "graph":
        return {"height": schedule.period}
    together = 0  # the tick of everybody, as long as nobody skips
    last_tick: dict[int, int] = {}  # after that, of the workers (local ranks) that are in a group at all
    for phase in schedule.phases:
        groups = [members for members, across, _ in phase if len(members) > 1 or across]
        if not last_tick and sum(map(len, groups)) == schedule.width:
            together += 1
            continue
        for members in groups:
            tick = 1 + max(map(last_tick.get, members, repeat(together)))
            last_tick.update(dict.fromkeys(members, tick))
    return {"height": max(last_tick.values(), default=together)}
