"""Runs of groups under a quorum: how long their rounds take, how far models are apart in one, and what it comes to.

Models are averaged with the schedule's own matrices, each with as much progress as came (docs/theory/quorum-groups.md).
So the same recursion, with the calls that the run had in each round, says how far models are apart, and the steps model
what that costs. Predicted steps are rounds: All-Reduce's, times workers over calls in a round, times that price.
Averages that come r rounds late, of as many calls as there are workers, count r times what is known of averages that
come one round late to all alike, in their consensus distance and in their price.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from partreduce.planner.measuring import pushed_by
from partreduce.planner.option import QuorumFacts
from partreduce.planner.quorums import PER_MESSAGE, WARM_UP, Costs, by, queue_for, rounds_for
from partreduce.schedulers import registry
from partreduce.topo.figures.base import Figure, Kind, absent
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.timing.quorum import balance

if TYPE_CHECKING:
    import numpy.typing as npt

    from partreduce.planner.job import Job
    from partreduce.planner.option import Option
    from partreduce.planner.quorums import Run
    from partreduce.topo.phase import Phase
    from partreduce.topo.schedule import Schedule

PER_WORKER = 3e-8
"""Nominal seconds of an event for each worker of whom its state says something."""
PER_ENTRY = 5e-8
"""Nominal seconds of a round for each of the n² entries of its figures."""


class Figures(NamedTuple):
    """How far models are apart in a run: mean squares, as the figures of a schedule."""

    consensus_distance: float
    drift_worker: float
    drift_node: float


def sizes_of(schedule: Schedule) -> tuple[int, ...]:
    """The different numbers of members of its groups, ascending."""
    return tuple(sorted({int(size) for phase in phases_of(schedule) for size in phase.sizes}))


def phases_of(schedule: Schedule) -> list[Phase]:
    """The phases of a period."""
    return [schedule.phase(index) for index in range(schedule.phased.period)]


def of_calls(seconds: npt.NDArray[np.float64], pace: int) -> npt.NDArray[np.float64]:
    """Seconds (samples, num_workers) of calls of `pace` steps each, from those of steps; each step is in one call."""
    whole = len(seconds) // pace
    return seconds[: whole * pace].reshape(whole, pace, -1).sum(axis=1) if whole else seconds * pace


def period_of(seconds: npt.NDArray[np.float64], schedule: Schedule, setting: Quorum, costs: Costs) -> float:
    """About how long a round takes: in each phase as the group whose quorum comes last would take by itself.

    Args:
        seconds: of calls, (samples, num_workers).
        schedule: of groups.
        setting: their quorum.
        costs: of word, and of a round's sums.
    """
    means, periods = seconds.mean(axis=0), []
    for phase in {(phase.members.tobytes(), phase.offsets.tobytes()): phase for phase in phases_of(schedule)}.values():
        groups = [np.array(group.members) for group in phase]
        if groups:
            last = max(groups, key=lambda group: float(np.sort(means[group])[setting.needed(len(group)) - 1]))
            found = balance(seconds[:, last], setting, word=costs.word, sum_seconds=costs.sum_seconds)
            periods.append(found.seconds)
    return float(np.mean(periods)) if periods else float(means.max())


def work_of_run(schedule: Schedule, setting: Quorum, num_rounds: int) -> float:
    """Nominal seconds: under a number all members of a group tell all, else one tells all."""
    count = schedule.num_workers
    told = [phase.sizes if isinstance(setting.quorum, QuorumStart) else phase.sizes**2 for phase in phases_of(schedule)]
    messages = float(np.mean([sizes.sum() for sizes in told]))
    return num_rounds * ((PER_MESSAGE + PER_WORKER * count) * (messages + 4 * count) + PER_ENTRY * count**2)


def memory_bytes(job: Job) -> float:
    """What a worker keeps beside its parameters, whatever the queue."""
    from partreduce.runtime.virtual_time.predict import ARRAYS

    strategy = registry.build("allreduce", job.cluster).strategy
    return ARRAYS["quorum-groups"](strategy, job.cluster.num_workers) * (job.hardware.model_bytes or 0)


def figures_of(schedule: Schedule, calls: npt.NDArray[np.int64], node_of: npt.NDArray[np.int32]) -> Figures:
    """How far the models of a run are apart, after its warm-up. O(num_rounds · n²).

    b(k + 1) = W_k b(k) + u(k + 1) of docs/theory/quorum-groups.md, with noise of unit variance for every step, and with
    one push a worker, of which the mean is taken out as those that made no progress in a round would else count as
    pushed.

    Args:
        schedule: of groups, at one pace for all.
        calls: of each worker in every round, (num_rounds, num_workers).
        node_of: the node of each worker, (num_workers,).
    """
    count, pace = calls.shape[1], int(schedule.paces()[0])
    on_node = np.eye(int(node_of.max()) + 1)[node_of]  # (num_workers, num_nodes)
    noise, pushed = np.zeros((2, count, count))
    phases, first, squares = phases_of(schedule), len(calls) // WARM_UP, []
    for index, came in enumerate(calls):
        phase, made = phases[index % len(phases)], np.diag(came * float(pace))
        noise = phase.apply(phase.apply(noise + made).T).T
        pushed = phase.apply(pushed + made)
        if index >= first:
            off = pushed - pushed.mean(axis=0)
            off -= off.mean(axis=1, keepdims=True)
            apart = float(np.trace(noise)) - float(noise.sum()) / count
            squares.append((apart, float((off**2).sum()), float(((off @ on_node) ** 2).sum())))
    inner = (count - 1) / count * (pace - 1) / 2  # steps of one's own within a round, as in `topo.figures.retimed`
    spread, by_worker, by_node = (np.mean(squares, axis=0) / count).tolist()
    return Figures(spread + inner, by_worker, by_node)


def setting_of(base: Option, start: QuorumStart | int, job: Job, seconds: npt.NDArray[np.float64]) -> Quorum:
    """With a queue that holds the rounds which pass during the longest call, so that nobody waits for it.

    `seconds` (samples, num_workers) are those of steps; so in `rounds_of`.
    """
    made, calls = Quorum(quorum=start), of_calls(seconds, _pace(base))
    return replace(made, staleness=queue_for(calls, period_of(calls, base.schedule, made, _costs(base, job))))


def rounds_of(base: Option, setting: Quorum, job: Job, seconds: npt.NDArray[np.float64]) -> int:
    """Rounds of a run in which the slowest worker has some calls."""
    calls = of_calls(seconds, _pace(base))
    return rounds_for(calls, period_of(calls, base.schedule, setting, _costs(base, job)))


def _pace(base: Option) -> int:
    return int(base.schedule.paces()[0])


def _costs(base: Option, job: Job) -> Costs:
    return Costs(max(job.hardware.inside.latency, job.hardware.nic.latency), base.communication * _pace(base))


def words_of(setting: Quorum, base: Option) -> str:
    """A setting as tables call it."""
    who = "solo in" if isinstance(setting.quorum, QuorumStart) else f"{setting.quorum} of"
    return f"{who} each group of {base.name}"


def measured(base: Option, setting: Quorum, job: Job, found: Run) -> Option:
    """A schedule of groups under a quorum, as one run of it is."""
    option, count, pace = by(base, setting), job.cluster.num_workers, _pace(base)
    late = found.age * found.gradients / count  # rounds of as many calls as there are workers
    figures = figures_of(option.schedule, found.calls, job.cluster.node_of())
    how = f"by a run of {len(found.calls)} rounds"
    # What comes a round late to all alike adds a round's steps (`topo.figures.retimed`).
    noise = Figure(figures.consensus_distance + late * pace * (count - 1) / count, Kind.ESTIMATE, how)
    drift = Figure(figures.drift_node if job.push == "node" else figures.drift_worker, Kind.ESTIMATE, how)
    model, counted = job.steps_model, (float(noise), pushed_by(drift, job))
    words = words_of(setting, base)
    name = f"quorum: {words}, up to {setting.staleness} late"
    return replace(
        option,
        name=name,
        schedule=replace(option.schedule, name=name),
        nic_bytes=found.nic_bytes / pace,
        step_seconds=found.seconds / pace,
        step_error=found.error,
        waiting=found.waiting / pace,
        consensus_distance=noise,
        drift=drift,
        contraction=absent("of the shadow models it is the schedule's own; models are never all of one round"),
        steps_ratio=count / found.gradients * (model.steps_ratio(*counted) + model.late * late),
        model=model,
        extrapolated=model.extrapolates(*counted),
        corrected=False,
        quorum=QuorumFacts(
            words=words,
            active=found.active,
            gradients=found.gradients * pace,
            gradients_per_second=found.gradients * pace / found.seconds if found.seconds else float("inf"),
            age=found.age,
            delay=late,
            bound=setting.staleness,
            least_share=found.least_share,
            memory_bytes=memory_bytes(job),
            of=base.name,
        ),
    )
