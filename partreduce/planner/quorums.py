"""Quorums as options: schedules whose rounds start when some have come, under settings that answer what slows workers.

All-Reduce is run in virtual time (`quorum_runs`) under a few of them. Of schedules of groups those are run that would
be best if all workers were alike, and then what is near the best.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from partreduce.planner.competitors import MAX_GRAPH_WORKERS, competitors
from partreduce.planner.lateness import Lateness
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import measure
from partreduce.planner.quorum_runs import (
    MOST_LATE,
    by,
    measured,
    memory_of_groups,
    phases_of,
    rounds_of,
    run,
    setting_of,
    sizes_of,
    words_of,
    work_of_run,
)
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.work import payer
from partreduce.schedulers import registry
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.timing.quorum import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from partreduce.planner.job import Job
    from partreduce.planner.option import Option
    from partreduce.schedulers.synthesis.clock import Clock
    from partreduce.topo.schedule import Schedule

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


def quorum_options(
    job: Job, clock: Clock, until: float, left_out: Callable[[str], None], *, known: Sequence[Option] = ()
) -> list[Option]:
    """All-Reduce and a few schedules of groups under a few quorums, each run in virtual time.

    The names of those that the time did not reach go to `left_out`; one is run in any case if nothing else is asked
    for. Schedules of groups are those among the `known` options, or the catalogue's rules. None where the job does not
    weigh quorums, or its limits leave them out, and groups of no more than 256 workers.
    """
    if not job.weighs_quorums:
        return []
    trials = Trials(job, payer(clock, until), left_out)
    base = all_reduce(job)
    if within_limits(base.schedule, job.limits):
        trials.try_all(base, settings(base, job, trials.seconds))
    of_groups = Trials(job, payer(clock, until), left_out)
    has_room = job.max_queues is None or memory_of_groups(job) <= job.max_queues
    if job.cluster.num_workers <= MAX_GRAPH_WORKERS and has_room:
        of_groups.search(based(known or _rules(job, clock, until), job))
    return [*trials.options.values(), *of_groups.worth()]


def all_reduce(job: Job) -> Option:
    """All-Reduce in every step, in lockstep, as numbers are, in its cheapest form."""
    return measure(registry.build("allreduce", job.cluster), replace(job, codec=Codec.NONE))


def settings(base: Option, job: Job, seconds: npt.NDArray[np.float64]) -> list[Quorum]:
    """Of All-Reduce: all but the slow workers or one, half of them, majority, and solo, with queues that suit them.

    `seconds` (samples, num_workers) are those of steps.
    """
    count, slow = job.cluster.num_workers, len(Slowdown.of(job).slow)
    numbers = [number for number in (count - max(1, slow), count - 1, count // 2) if 2 <= number < count]
    starts: list[QuorumStart | int] = [*dict.fromkeys(numbers), QuorumStart.MAJORITY, QuorumStart.SOLO]
    return [setting_of(base, start, job, seconds) for start in starts]


def _rules(job: Job, clock: Clock, until: float) -> list[Option]:
    """The catalogue's rules, if all workers were alike."""
    stop = clock.position() + MEASURED_SHARE * max(0.0, until - clock.position())
    rules = [name for name in registry.names() if registry.entry(name).kind == "rule"]
    return competitors(_calm(job), until=stop, stop=stop, clock=clock, names=rules)


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
        return (job.compute_times().base + option.communication) * option.steps_ratio, option.name

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


def starts_of(schedule: Schedule, slow: Sequence[int]) -> list[QuorumStart | int]:
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
    return [*dict.fromkeys(numbers), QuorumStart.SOLO]


@dataclass
class Trials:
    """What was run so far, by schedule and setting, and the most rounds that anything was late in each run."""

    job: Job
    pay: Callable[[float], bool]
    left_out: Callable[[str], None]
    options: dict[tuple[str, Quorum], Option] = field(default_factory=dict)
    oldest: dict[tuple[str, Quorum], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seconds = sampled(self.job.compute_times(), self.job.cluster.num_workers, seed=self.job.seed)
        self._slow = [worker for worker, _ in Slowdown.of(self.job).slow]

    def try_all(self, base: Option, listed: Sequence[Quorum]) -> None:
        """Run a schedule under all settings that there is time for; under one in any case if all must be quorums."""
        able = [setting for setting in listed if self.pay(self._work(base, setting))]
        if not able and self.job.quorum:
            able = [min(listed, key=lambda setting: self._work(base, setting))]
        for setting in listed:
            if setting in able:
                self._run(base, setting)
            else:
                self.left_out(words_of(setting, base))

    def search(self, bases: Sequence[Option]) -> None:
        """Run the best schedules of different sizes under the quorums that suit them, then what is near the best."""
        kinds: dict[tuple[int, ...], list[Option]] = {}
        for base in bases:
            kinds.setdefault(sizes_of(base.schedule), []).append(base)
        for first, *_ in list(kinds.values())[:KEPT]:
            for start in starts_of(first.schedule, self._slow):
                self.tried(first, setting_of(first, start, self.job, self.seconds))
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
        if self.pay(self._work(base, setting)):
            self._run(base, setting)
        else:
            self.left_out(words_of(setting, base))

    def _work(self, base: Option, setting: Quorum) -> float:
        return work_of_run(base.schedule, setting, rounds_of(base, setting, self.job, self.seconds))

    def _run(self, base: Option, setting: Quorum) -> None:
        rounds = rounds_of(base, setting, self.job, self.seconds)
        found = run(by(base, setting), self.job, self.job.compute_times(), rounds)
        key = (base.name, setting)
        self.options[key], self.oldest[key] = measured(base, setting, self.job, found), found.oldest

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
                    yield base, setting_of(base, number, self.job, self.seconds)
        for other in kinds[sizes][: 1 + ALIKE]:
            yield other, setting_of(other, setting.quorum, self.job, self.seconds)
