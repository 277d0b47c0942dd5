"""Replanning: what those who are left of a run had better do, by what they have measured; a program of its own.

`partreduce run --replan` starts it beside the training, and gives it a question as JSON; the answer is JSON, too. It
takes what the planner takes for survivors of a loss (`contingencies`): other groups, at the run's own pace.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any

from partreduce.planner.contingencies import goes_on, groups_for
from partreduce.planner.gain import WORTH, regrets
from partreduce.planner.job import Job
from partreduce.planner.measuring import measure
from partreduce.planner.option import Option
from partreduce.runtime.elastic.measured import LEAST_STEPS
from partreduce.topo.cluster import Cluster
from partreduce.topo.contingency import Groups, Survivors, after_loss, with_groups
from partreduce.topo.document.schedule import dump_schedule, schedule_of
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import USUAL, Hardware, Link
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.timing.cost import group_seconds
from partreduce.verify.base import Status
from partreduce.verify.prove import prove

UNEVEN = 1.1
"""Whose steps take so many times as long as the fastest worker's is slow; less is noise."""
NICE = 10
"""Of this process: a tenth of a worker's share of a processor that both want. At 19 it never came to an end there."""

Measured = Mapping[int, Mapping[str, Any]]
"""By rank, what a worker has measured (`runtime.elastic.measured`)."""


@dataclass(frozen=True, slots=True)
class Replanned:
    """A schedule, proved, for those who are left, and what it is predicted to gain over what they run now."""

    schedule: Schedule
    before: Option
    after: Option

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": dump_schedule(self.schedule),
            "before": _told(self.before),
            "after": _told(self.after),
            "gain": self.before.time / self.after.time,
        }


def _told(option: Option) -> dict[str, Any]:
    return {"name": option.schedule.name, "period": option.period, "step_seconds": option.step_seconds}


def replanned(schedule: Schedule, now: Schedule, members: Sequence[int], measured: Measured) -> Replanned | None:
    """Other groups with which `members` reach the loss clearly sooner than with those of now, proved; None without any.

    Clearly: by `WORTH` at the usual prices, and no later at any prices that the planner holds possible.

    Args:
        schedule: the run's own.
        now: what the members run, which are its workers 0 … m − 1.
        members: who is left, in the ranks of `schedule`.
        measured: by the members.

    Raises:
        PartreduceError: such a schedule cannot be planned for.
    """
    cluster = refreshed(now, members, measured)
    if cluster is None or now.strategy.averages_gradients:
        return None
    job, lost = Job(cluster=cluster), sorted(set(range(schedule.num_workers)).difference(members))
    before = _measured(now, job)
    if before is None:
        return None
    offered: list[Groups] = [Survivors.ALL]
    with suppress(PartreduceError):
        offered += groups_for(job, now.strategy.pace)
    candidates = [after_loss(schedule, lost) if lost else schedule]
    for groups in offered:
        with suppress(PartreduceError):
            candidates.append(with_groups(schedule, lost, groups))
    options = [one for one in (_measured(candidate, job) for candidate in candidates) if one is not None]
    clear = [one for one in options if one.time * (1 + WORTH) <= before.time and regrets([one, before], job)[0] <= 1]
    for option in sorted(clear, key=lambda one: one.time):
        bare = replace(option.schedule, name=f"{schedule.name} replanned", certificate=None, contingencies=())
        proof = prove(bare)
        if proof.verdict is Status.PROVED and goes_on(bare):
            return Replanned(bare.with_certificate(proof.certificate), before, option)
    return None


def _measured(schedule: Schedule, job: Job) -> Option | None:
    with suppress(PartreduceError):
        option = measure(schedule, job, form=schedule.strategy.how.form)
        return option if isfinite(option.time) else None
    return None


def refreshed(now: Schedule, members: Sequence[int], measured: Measured) -> Cluster | None:
    """The cluster of those who are left, with hardware as they found it; None where that is not enough.

    The time of an average is that of whoever came last to it, who waited for nobody. Links have the proportions that
    `Cluster` assumes where nothing was sent over one kind alone.
    """
    if any(member not in measured or measured[member]["steps"] < LEAST_STEPS for member in members):
        return None
    seconds = [max(measured[member]["compute"] / measured[member]["steps"], 1e-9) for member in members]
    base = min(seconds)
    slow = tuple((place, own / base) for place, own in enumerate(seconds) if own > UNEVEN * base)
    rounds: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    size = 0
    for member in members:
        for round_, group, num_bytes, took in measured[member]["averages"]:
            rounds.setdefault((round_, tuple(group)), []).append(took)
            size = max(size, num_bytes)
    usual = replace(USUAL, compute=base, model_bytes=size, slowdown=slow)
    node_of = now.cluster.node_of()
    inside: list[float] = []
    across: list[float] = []
    for (round_, group), took in rounds.items():
        if len(took) < len(group):
            continue
        own = tuple(members.index(member) for member in group)
        predicted = _predicted(now, round_, own, usual)
        (inside if len({int(node_of[worker]) for worker in own}) == 1 else across).append(min(took) / predicted)
    if len(inside) + len(across) < LEAST_STEPS:
        return None
    within, between = (median(one or other) for one, other in ((inside, across), (across, inside)))
    hardware = replace(usual, inside=_scaled(usual.inside, within), nic=_scaled(usual.nic, between))
    return replace(now.cluster, hardware=hardware)


def _predicted(now: Schedule, round_: int, group: tuple[int, ...], hardware: Hardware) -> float:
    """Seconds that a group's average takes in its round, beside those of the others."""
    groups = [one.members for one in now.phase(round_ - now.prologue)] if round_ >= now.prologue else [group]
    if group not in groups:
        groups = [group]
    phase = Phase.from_groups(now.num_workers, groups)
    listed = group_seconds(phase, now.cluster, hardware, form=now.strategy.how.form)
    order = [one.members for one in phase]
    return max(float(listed[order.index(group)]), 1e-12)


def _scaled(link: Link, factor: float) -> Link:
    return Link(link.latency * factor, link.seconds_per_byte * factor)


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """What is answered to a question, both as JSON; empty where nothing is clearly better."""
    schedule, now = schedule_of(question["schedule"]), schedule_of(question["now"])
    measured = {int(rank): said for rank, said in question["measured"].items()}
    found = replanned(schedule, now, question["members"], measured)
    return {} if found is None else found.to_json()


def main() -> None:
    """Answer the question on standard input; beside a training, so it takes what time that leaves."""
    os.nice(NICE)
    sys.stdout.write(json.dumps(answer(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
