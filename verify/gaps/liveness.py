"""Liveness of a setting: every cycle of the event graph carries a token, so that no worker waits for ever."""

from __future__ import annotations

from partreduce.verify.gaps.event_graph import EventGraph


def dead_cycle(events: EventGraph) -> tuple[int, ...] | None:
    """Events that wait for one another in a circle without a token, or None if the system is live. O(arcs).

    Lets every event happen once if it can; afterwards the tokens lie as at the start, so what happens once happens for
    ever. With spare = 0 the events that never happen are those on and behind cycles without tokens (Commoner's theorem
    for marked graphs).
    """
    open_needs = [0] * events.num_events
    left = []
    uses: list[list[int]] = [[] for _ in range(events.num_events)]
    for index, need in enumerate(events.needs):
        blocking = [source for source, tokens in need.sources if tokens == 0]
        left.append(len(blocking) - need.spare)
        if left[index] > 0:
            open_needs[need.event] += 1
            for source in blocking:
                uses[source].append(index)
    happened = [False] * events.num_events
    waiting = [event for event in range(events.num_events) if not open_needs[event]]
    while waiting:
        event = waiting.pop()
        happened[event] = True
        for index in uses[event]:
            left[index] -= 1
            if left[index] == 0:
                target = events.needs[index].event
                open_needs[target] -= 1
                if not open_needs[target]:
                    waiting.append(target)
    dead = {event for event in range(events.num_events) if not happened[event]}
    return _cycle(events, dead) if dead else None


def _cycle(events: EventGraph, dead: set[int]) -> tuple[int, ...]:
    """Follow, from a dead event, one dead source after the other until one comes back."""
    reason: dict[int, int] = {}
    for need in events.needs:
        blocked = [source for source, tokens in need.sources if tokens == 0 and source in dead]
        if need.event in dead and len(blocked) > need.spare:
            reason.setdefault(need.event, blocked[0])
    walked: list[int] = []
    event = min(dead)
    while event not in walked:
        walked.append(event)
        event = reason[event]
    return tuple(walked[walked.index(event) :])
