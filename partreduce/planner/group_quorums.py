"""Quorums of groups as options: schedules of groups in which a group's round starts when some of its members have come.

Candidates are the schedules that would be best if all workers were alike, under the quorums that answer what slows them
down; those are run in virtual time (`group_runs`), and then what is near the best.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from partreduce.planner.competitors import MAX_GRAPH_WORKERS, competitors
from partreduce.planner.group_runs import (
    measured,
    memory_bytes,
    phases_of,
    rounds_of,
    setting_of,
    sizes_of,
    words_of,
    work_of_run,
)
from partreduce.planner.lateness import Lateness
from partreduce.planner.quorums import MOST_LATE, by, run
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.work import payer
from partreduce.schedulers import registry
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.timing.quorum import sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
