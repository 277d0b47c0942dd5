"""Dealing: which samples each worker takes in each round of an epoch of the data, over failures and joins.

The order of the epoch is dealt round by round to who is a member, by rank and steps per round. In the round from which
the members of a new view average, a failed worker's samples go back to the front, since nobody has seen them in an
average; who joins takes those of its steps from there: of one, or where fragments have turns in the round of all that
are left of it. From the next round on all that is left is dealt to the new members. So every sample is in one average,
and none in two, but for what does not fill a last round of all members, and for fragments that had had their turn when
a worker failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from partreduce.topo.strategies.fragments import round_ends

Members = tuple[int, ...]
Views = Sequence[tuple[int, Members]]
"""Who is a member after which turn, in order; the first is of all, before round 0. A round has one turn or several."""


def dealt(
    order: Sequence[int], views: Views, worker_steps: Sequence[int], per_step: int, start: int, *, turns: int = 1
) -> Iterator[tuple[int, dict[int, list[int]]]]:
    """(round, samples by worker) of each round of an epoch that begins with round `start`.

    Where fewer are left than one that joins needs, it takes of the epoch's first ones again: the others wait for it.
    """
    rest, round_ = deque(order), start
    members = next(members for after, members in reversed(views) if after < start * turns)
    coming = deque((*divmod(after, turns), members) for after, members in views if after >= start * turns)
    while len(rest) >= per_step * sum(worker_steps[worker] for worker in members):
        hands = {worker: _take(rest, per_step * worker_steps[worker]) for worker in members}
        while coming and coming[0][0] == round_:
            _, turn, members = coming.popleft()
            for worker in sorted(hands.keys() - set(members), reverse=True):
                rest.extendleft(reversed(hands.pop(worker)))
            for worker in sorted(set(members) - hands.keys()):
                count = per_step * (worker_steps[worker] - round_ends(turns, worker_steps[worker])[turn] + 1)
                hands[worker] = _take(rest, min(count, len(rest)))
                hands[worker] += order[: count - len(hands[worker])]
        yield round_, hands
        round_ += 1


def _take(rest: deque[int], count: int) -> list[int]:
    return [rest.popleft() for _ in range(count)]
