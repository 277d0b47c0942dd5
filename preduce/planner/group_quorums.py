"""Quorums of groups as options: schedules of groups in which a group's round starts when some of its members have come.

Candidates are the schedules that would be best if all workers were alike, under the quorums that answer what slows them
down; those are run in virtual time. Models are averaged with the schedule's own matrices, each with as much progress as
came (docs/theory/quorum-groups.md). So the same recursion, with the calls that the run had in each round, says how far
models are apart, and the steps model what that costs. Predicted steps are rounds: All-Reduce's, times workers over
calls in a round, times that price. Averages that come r rounds late, of as many calls as there are workers, count r
times what is known of averages that come one round late to all alike, in their disagreement and in their price.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from preduce.planner.competitors import MAX_GRAPH_WORKERS, competitors
from preduce.planner.lateness import Lateness
from preduce.planner.measuring import pushed_by
from preduce.planner.option import QuorumFacts
from preduce.planner.quorums import MOST_LATE, PER_MESSAGE, WARM_UP, Costs, by, queue_for, rounds_for, run
from preduce.planner.slowdown import Slowdown
from preduce.planner.work import payer
from preduce.schedulers import registry
from preduce.topo.figures.base import Figure, Kind, absent
from preduce.topo.strategies.axes import Codec
from preduce.topo.strategies.quorum import Quorum, Start
from preduce.topo.timing.quorum import balance, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from preduce.planner.job import Job
    from preduce.planner.option import Option
    from preduce.planner.quorums import Run
    from preduce.schedulers.synthesis.clock import Clock
    from preduce.topo.phase import Phase
    from preduce.topo.schedule import Schedule

KEPT = 3
"""Schedules with groups of different sizes that are run."""
ALIKE = 2
"""More of the sizes that turn out best."""
NOTHING = 1e-3
"""A longer queue has to save more than this part of the time."""
REFINEMENTS = 3
"""Times that the neighbours of the best are tried, as long as one is better."""
MEASURED_SHARE = 0.3
"""Of the time, for the figures of schedules in lockstep."""
PER_WORKER = 3e-8
"""Nominal seconds of an event for each worker of whom its state says something."""


PER_ENTRY = 5e-8
"""Nominal seconds of a round for each of the n² entries of its figures."""


class Figures(NamedTuple):
    """How far models are apart in a run: mean squares, as the figures of a schedule."""

    disagreement: float
    drift_worker: float
    drift_node: float


def group_quorum_options(
    job: Job, clock: Clock, until: float, left_out: Callable[[str], None], *, known: Sequence[Option] = ()
) -> list[Option]:
    """A few schedules of groups under a few quorums, each run in virtual time; the neighbours of the best as well.

    The names of those that the time did not reach go to `left_out`. Schedules are those among the `known` options, or
    the catalogue's rules. None where the job does not weigh quorums, none of more than 256 workers, and none whose four
    arrays the job has no room for.
    """
    too_large = job.max_queues is not None and memory_bytes(job) > job.max_queues
    if not job.weighs_quorums or too_large or job.cluster.num_workers > MAX_GRAPH_WORKERS:
        return []
    if not known:
        stop = clock.position() + MEASURED_SHARE * max(0.0, until - clock.position())
        rules = [name for name in registry.names() if registry.entry(name).kind == "rule"]
        known = competitors(_calm(job), until=stop, stop=stop, clock=clock, names=rules)
    trials = Trials(job, payer(clock, until), left_out)
    trials.search(based(known, job))
    return trials.worth()


def _calm(job: Job) -> Job:
    """The same job of workers that are alike, in lockstep, with sums as they are."""
    hardware = replace(job.hardware, slowdown=(), jitter=0.0)
    return replace(
        job,
        cluster=replace(job.cluster, hardware=hardware),
        disturbance=None,
        drift_correction=False,
        when=Lateness.LOCKSTEP,
        codec=Codec.NONE,
        quorum=False,
        gap=False,
    )


def based(options: Sequence[Option], job: Job) -> list[Option]:
    """The options whose groups may have a quorum, by their time to a loss if nobody waited for anybody.

    What averages over all workers in each round is left to a quorum of all.
    """

    def time(option: Option) -> tuple[float, str]:
        return (job.compute_times().base + option.communication) * option.stretch, option.name

    able = [
        option
        for option in options
        if Quorum in option.schedule.strategy.whens
        and not option.is_plain
        and isinstance(option.pace, int)
        and option.lateness is Lateness.LOCKSTEP
        and option.how.codec is Codec.NONE
        and np.isfinite(option.time)
        and sizes_of(option.schedule) not in {(), (job.cluster.num_workers,)}
    ]
    return sorted(able, key=time)


def sizes_of(schedule: Schedule) -> tuple[int, ...]:
    """The different numbers of members of its groups, ascending."""
    return tuple(sorted({int(size) for phase in phases_of(schedule) for size in phase.sizes}))


def phases_of(schedule: Schedule) -> list[Phase]:
    """The phases of a period."""
    return [schedule.phase(index) for index in range(schedule.phased.period)]


def starts_of(schedule: Schedule, slow: Sequence[int]) -> list[Start | int]:
    """Who starts rounds: all members but the slow ones of every group, or all but one; half of the smallest; the first.

    Args:
        schedule: of groups.
        slow: workers that are always slow.
    """
    sizes = sizes_of(schedule)
    is_slow = np.isin(np.arange(schedule.num_workers), slow)
    left = [int((~is_slow[list(group.members)]).sum()) for phase in phases_of(schedule) for group in phase]
    usual = min((number for number in left if number), default=1) if len(slow) else sizes[0] - 1
    numbers = [number for number in (usual, sizes[0] // 2) if 2 <= number < sizes[-1]]
    return [*dict.fromkeys(numbers), Start.SOLO]


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
    told = [phase.sizes if isinstance(setting.quorum, Start) else phase.sizes**2 for phase in phases_of(schedule)]
    messages = float(np.mean([sizes.sum() for sizes in told]))
    return num_rounds * ((PER_MESSAGE + PER_WORKER * count) * (messages + 4 * count) + PER_ENTRY * count**2)


def memory_bytes(job: Job) -> float:
    """What a worker keeps beside its parameters, whatever the queue."""
    from preduce.runtime.virtual_time.predict import ARRAYS

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


@dataclass
class Trials:
    """What was run so far, by schedule and setting, and the most rounds that anything was late in each run."""

    job: Job
    pay: Callable[[float], bool]
    left_out: Callable[[str], None]
    options: dict[tuple[str, Quorum], Option] = field(default_factory=dict)
    oldest: dict[tuple[str, Quorum], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Sample step times once."""
        self._seconds = sampled(self.job.compute_times(), self.job.cluster.num_workers, seed=self.job.seed)
        self._slow = [worker for worker, _ in Slowdown.of(self.job).slow]

    def search(self, bases: Sequence[Option]) -> None:
        """Run the best schedules of different sizes under the quorums that suit them, then what is near the best."""
        kinds: dict[tuple[int, ...], list[Option]] = {}
        for base in bases:
            kinds.setdefault(sizes_of(base.schedule), []).append(base)
        for first, *_ in list(kinds.values())[:KEPT]:
            for start in starts_of(first.schedule, self._slow):
                self.tried(first, setting_of(first, start, self.job, self._seconds))
        for _ in range(REFINEMENTS):
            if not self.options:
                return
            best = self.best()
            for base, setting in self._near(*best, kinds):
                self.tried(base, setting)
            if self.best() == best:
                return

    def best(self) -> tuple[str, Quorum]:
        """The schedule and the setting with the least time to a loss so far."""
        return min(self.options, key=lambda key: (self.options[key].time, key[1].staleness, key[0]))

    def worth(self) -> list[Option]:
        """All options but those whose queue is longer than another's and gains nothing by that."""
        return [
            option
            for (name, setting), option in self.options.items()
            if not any(
                other == name
                and shorter == replace(setting, staleness=shorter.staleness)
                and shorter.staleness < setting.staleness
                and self.options[other, shorter].time <= option.time * (1 + NOTHING)
                for other, shorter in self.options
            )
        ]

    def tried(self, base: Option, setting: Quorum) -> None:
        """Run a schedule under a setting, if there is time and it was not run."""
        key = (base.name, setting)
        if key in self.options:
            return
        rounds = rounds_of(base, setting, self.job, self._seconds)
        if self.pay(work_of_run(base.schedule, setting, rounds)):
            found = run(by(base, setting), self.job, self.job.compute_times(), rounds)
            self.options[key], self.oldest[key] = measured(base, setting, self.job, found), found.oldest
        else:
            self.left_out(words_of(setting, base))

    def _near(
        self, name: str, setting: Quorum, kinds: dict[tuple[int, ...], list[Option]]
    ) -> Iterator[tuple[Option, Quorum]]:
        """One member more or less, half and twice the queue, and other schedules with groups of these sizes.

        Queues only as far as that changes the run.
        """
        sizes, oldest = sizes_of(self.options[name, setting].schedule), self.oldest[name, setting]
        base = next(one for one in kinds[sizes] if one.name == name)
        if oldest > setting.staleness // 2 > 0:
            yield base, replace(setting, staleness=setting.staleness // 2)
        if oldest >= setting.staleness < MOST_LATE:
            yield base, replace(setting, staleness=min(MOST_LATE, 2 * setting.staleness))
        if isinstance(setting.quorum, int):
            for number in (setting.quorum - 1, setting.quorum + 1):
                if 2 <= number < sizes[-1]:
                    yield base, setting_of(base, number, self.job, self._seconds)
        for other in kinds[sizes][: 1 + ALIKE]:
            yield other, setting_of(other, setting.quorum, self.job, self._seconds)


def setting_of(base: Option, start: Start | int, job: Job, seconds: npt.NDArray[np.float64]) -> Quorum:
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
    who = "solo in" if isinstance(setting.quorum, Start) else f"{setting.quorum} of"
    return f"{who} each group of {base.name}"


def measured(base: Option, setting: Quorum, job: Job, found: Run) -> Option:
    """A schedule of groups under a quorum, as one run of it is."""
    option, count, pace = by(base, setting), job.cluster.num_workers, _pace(base)
    late = found.age * found.gradients / count  # rounds of as many calls as there are workers
    figures = figures_of(option.schedule, found.calls, job.cluster.node_of())
    how = f"by a run of {len(found.calls)} rounds"
    # What comes a round late to all alike adds a round's steps (`topo.figures.retimed`).
    noise = Figure(figures.disagreement + late * pace * (count - 1) / count, Kind.ESTIMATE, how)
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
        disagreement=noise,
        drift=drift,
        contraction=absent("of the shadow models it is the schedule's own; models are never all of one round"),
        stretch=count / found.gradients * (model.stretch(*counted) + model.late * late),
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
