"""The group generator in virtual time: waiting, conflicts and step rates of every rule, by the pure machine itself."""

from __future__ import annotations

import heapq
import random
from typing import TYPE_CHECKING, Any

from preduce.schedulers.protocols.base import Send
from preduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from preduce.schedulers.protocols.group_generator.service import Ask, Grant, GroupGenerator, Later
from preduce.topo.strategies.generated import Division, InitiatorRule

if TYPE_CHECKING:
    from collections.abc import Mapping

PER_NODE = 4


def simulate(
    setting: GeneratorSetting, slow: Mapping[int, float], *, inside: float, across: float, rounds: int = 400
) -> dict[str, Any]:
    """Run until the fastest worker has done `rounds`.

    Computing takes 1 ± 5 % (times `slow`); a group operation takes `inside` or `across` nodes. Groups do not share
    links here, so what crosses nodes costs at least what is counted. `groups` lists the groups in order of meeting.
    """
    n, chance = setting.num_workers, random.Random(setting.seed)
    machine = GroupGenerator(setting)
    state = machine.initial()
    requests, steps, grouped, waited, delayed = [0] * n, [0] * n, [0] * n, [0.0] * n, 0
    computed, arrived, crossing, now = [0.0] * n, {}, 0, 0.0
    met: list[tuple[int, ...]] = []
    events = [(0.0, worker, -1, False) for worker in range(n)]
    while max(steps) < rounds:
        now, worker, done, late = heapq.heappop(events)
        cost = round(1000 * slow.get(worker, 1.0))
        state, actions = machine.handle(state, worker, Ask(requests[worker], done, computed=late, cost=cost))
        requests[worker] += 1
        if not late:
            computed[worker] = now + slow.get(worker, 1.0) * chance.uniform(0.95, 1.05)
        sends = [action for action in actions if isinstance(action, Send)]
        delayed += all(send.to != worker for send in sends)
        for send in sends:
            here = max(now, computed[send.to])
            if isinstance(send.message, Later):
                heapq.heappush(events, (here, send.to, -1, True))
            elif not isinstance(send.message, Grant):
                steps[send.to] += 1
                waited[send.to] += here - computed[send.to]
                heapq.heappush(events, (here, send.to, -1, False))
            else:
                members = send.message.members
                there = arrived.setdefault(send.message.seq, {})
                there[send.to] = here
                if len(there) == len(members):
                    begin, cross = max(there.values()), len({setting.nodes[w] for w in members}) > 1
                    met.append(members)
                    crossing += cross
                    for member in members:
                        steps[member] += 1
                        grouped[member] += 1
                        waited[member] += begin - computed[member]
                        heapq.heappush(events, (begin + (across if cross else inside), member, send.message.seq, False))
                    del arrived[send.message.seq]
    peers = [w for w in range(n) if w not in slow and any(setting.nodes[w] == setting.nodes[s] for s in slow)]
    others = [w for w in range(n) if w not in slow and w not in peers]
    return {
        "time_per_step": n * now / sum(steps),
        "waiting_per_step": sum(waited) / sum(steps),
        "requests_delayed": delayed / sum(requests),
        "groups_across_nodes_per_unit": crossing / now,
        "groups": met,
        "steps_slow": [steps[w] for w in slow],
        "grouped_slow": [grouped[w] for w in slow],
        "steps_same_node": sum(steps[w] for w in peers) / len(peers) if peers else None,
        "steps_other_nodes": sum(steps[w] for w in others) / len(others),
    }


def table(
    num_workers: int = 16, *, inside: float = 0.07, across: float = 0.97, rounds: int = 400
) -> list[dict[str, Any]]:
    """Every division and rule, with no slow worker and with one that is 2 and 5 times slower."""
    rows = []
    for factor in (1.0, 2.0, 5.0):
        slow = {} if factor == 1 else {5: factor}
        for division in Division:
            for rule in InitiatorRule:
                nodes = tuple(worker // PER_NODE for worker in range(num_workers))
                setting = GeneratorSetting(nodes=nodes, division=division, initiator=rule, seed=1)
                found = simulate(setting, slow, inside=inside, across=across, rounds=rounds)
                del found["groups"]
                rows.append({"division": str(division), "initiator": str(rule), "slow": factor, **found})
    return rows
