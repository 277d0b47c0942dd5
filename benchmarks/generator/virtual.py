"""The group generator in virtual time: waiting, conflicts and step rates of every rule, by the explored system."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from partreduce.runtime.virtual_time.groups import GroupTiming, WorkerRound, group_machine
from partreduce.schedulers.protocols.base import Received, Send
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting
from partreduce.topo.strategies.generated import Division, InitiatorRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from partreduce.runtime.virtual_time.machine import Step

PER_NODE = 4


class Measured(GroupTiming):
    """Computing takes 1 ± 5 % (times `slow`), a group `inside` or `across` nodes; counts what the rows tell."""

    def __init__(self, setting: GeneratorSetting, slow: Mapping[int, float], *, inside: float, across: float) -> None:
        chance = random.Random(setting.seed)
        super().__init__(
            lambda worker, _: slow.get(worker, 1.0) * chance.uniform(0.95, 1.05),
            lambda members: across if self.crosses(members) else inside,
            self.note,
        )
        self.setting = setting
        self.rounds: list[WorkerRound] = []
        self.steps = [0] * setting.num_workers
        self.requests = self.delayed = 0

    def crosses(self, members: tuple[int, ...]) -> bool:
        """Whether a group spans nodes."""
        return len({self.setting.nodes[worker] for worker in members}) > 1

    def note(self, done: WorkerRound) -> None:
        """A round that a worker has ended."""
        self.rounds.append(done)
        self.steps[done.worker] += 1

    def happened(self, step: Step) -> None:
        """Count the requests that are not answered at once."""
        super().happened(step)
        if step.process == self.setting.num_workers and isinstance(step.event, Received):
            self.requests += 1
            self.delayed += all(a.to != step.event.source for a in step.actions if isinstance(a, Send))


def simulate(
    setting: GeneratorSetting, slow: Mapping[int, float], *, inside: float, across: float, rounds: int = 400
) -> dict[str, Any]:
    """Run until the fastest worker has done `rounds`.

    Groups do not share links here, so what crosses nodes costs at least what is counted. `groups` lists the groups in
    order of meeting.
    """
    n, measured = setting.num_workers, Measured(setting, slow, inside=inside, across=across)
    costs = tuple(round(1000 * slow.get(worker, 1.0)) for worker in range(n))
    machine = group_machine(setting, measured, rounds=rounds + 1, costs=costs)  # nobody comes to the end of its rounds
    while max(measured.steps) < rounds:
        machine.run(max_events=1)
    met = {done.seq: (done.start, done.members) for done in measured.rounds if done.members}
    groups = [members for _, members in sorted(met.values())]
    steps = measured.steps
    peers = [w for w in range(n) if w not in slow and any(setting.nodes[w] == setting.nodes[s] for s in slow)]
    others = [w for w in range(n) if w not in slow and w not in peers]
    return {
        "time_per_step": n * machine.now / sum(steps),
        "waiting_per_step": sum(done.start - done.computed for done in measured.rounds) / sum(steps),
        "requests_delayed": measured.delayed / measured.requests,
        "groups_across_nodes_per_unit": sum(map(measured.crosses, groups)) / machine.now,
        "groups": groups,
        "steps_slow": [steps[w] for w in slow],
        "grouped_slow": [sum(done.worker == w and bool(done.members) for done in measured.rounds) for w in slow],
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
                row = simulate(setting, slow, inside=inside, across=across, rounds=rounds)
                del row["groups"]
                rows.append({"division": str(division), "initiator": str(rule), "slow": factor, **row})
    return rows
