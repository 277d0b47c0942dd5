"""Quorums: schedules whose rounds start when some have come, under settings that answer what slows workers.

All-Reduce is run in virtual time (`quorum_runs`) under a few of them. Of schedules of groups those are run that would
be best if all workers were alike, and then what is near the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from partreduce.planner.competitors import MAX_GRAPH_WORKERS, competitors
from partreduce.planner.gain import decisive_time, gain
from partreduce.planner.job import Data, Job
from partreduce.planner.lateness import Lateness
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import measure
from partreduce.planner.option import Option
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.trials import quorum_runs as runs
from partreduce.planner.trials.kit import Kind, Trial, Trials, best_of, calm, memory_bytes
from partreduce.schedulers import registry
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.quorum import Quorum, QuorumStart
from partreduce.topo.strategies.static import GroupPhases, Static
from partreduce.topo.timing.quorum import sampled

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
LITTLE = 0.5
"""A worker that brings less than this part of an even share is hardly heard."""

Key = tuple[str, Quorum]
"""What was run: the name of a schedule, and its quorum."""


class Quorums(Kind):
    """eager-SGD's kind: All-Reduce, and groups, whose rounds start when a quorum has come."""

    word, name = "quorum", "quorums"

    def weighs(self, job: Job) -> bool:
        return job.weighs_quorums

    def options(self, trials: Trials, known: Sequence[Option] = ()) -> list[Option]:
        """See `Kind`; one is run in any case if nothing else is asked for.

        Schedules of groups, for at most 256 workers, are those among the `known` options, or the catalogue's rules.
        """
        job = trials.job
        base, of_all = all_reduce(job), Search(trials)
        if within_limits(base.schedule, job.limits):
            of_all.try_all(base, settings(base, job, of_all.seconds))
        has_room = job.max_queues is None or memory_of_groups(job) <= job.max_queues
        if job.cluster.num_workers > MAX_GRAPH_WORKERS or not has_room:
            return list(of_all.options.values())
        of_groups = Search(replace(trials, options={}))
        of_groups.search(based(known or _rules(trials), job))
        return [*of_all.options.values(), *of_groups.worth()]

    def reasons(self, chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
        """See `Kind`: which quorum pays for which imbalance, what it brings and what it holds."""
        facts, count = chosen.quorum, job.cluster.num_workers
        assert facts is not None, "chosen is one of this kind"
        said = [_recommended(chosen, options, job)]
        others = [option for option in options if option.quorum and bool(option.quorum.of) != bool(facts.of)]
        if others and (best := best_of(others)).facts is not None:
            what = "a quorum of all workers" if facts.of else "a quorum of groups"
            said.append(
                f"it is predicted to be {gain(chosen, best, job.data)} as fast as {what} at its best "
                f"({best.facts.words})"
            )
        if facts.of:
            said.append(
                f"{facts.active:.3g} of {count} workers bring something to a round on average, {facts.gradients:.3g} "
                f"steps together, {facts.gradients_per_second:.4g} a second; averages come {facts.age:.2g} rounds late "
                f"on average, which is {facts.delay:.2g} of rounds with a call of everybody, never more than "
                f"{facts.bound}; the mean of all models is kept exactly"
            )
        else:
            said.append(
                f"a step of it is a round: {facts.active:.3g} of {count} workers are in one on average, "
                f"{facts.gradients:.3g} gradients, {facts.gradients_per_second:.4g} a second; they are {facts.age:.2g} "
                f"rounds late on average, which is {facts.delay:.2g} of All-Reduce's steps, and never more than "
                f"{facts.bound}"
            )
        models = facts.memory_bytes / (job.hardware.model_bytes or 1)
        said.append(f"it keeps at most {models:.3g} times the model beside the parameters, so that results may wait")
        return said

    def beside(self, best: Option, chosen: Option, job: Job) -> list[str]:
        """See `Kind`: what the best quorum would gain."""
        if not chosen.time > 0 or best.facts is None:
            return []
        against = gain(best, chosen, job.data)
        dear = decisive_time(best, job) > decisive_time(chosen, job)
        pays = "it does not pay if lateness costs as much as it may" if dear else "what was taken is simpler"
        pays = "it does not pay" if against.ratio <= 1 else pays
        return [f"a quorum is predicted to be {against} as fast at best ({best.facts.words}): {pays}"]

    def cautions(self, chosen: Option, job: Job) -> list[str]:
        facts = chosen.facts
        assert facts is not None, "chosen is one of this kind"
        price = (
            "the price of late averages was measured where all come one round late"
            if facts.of
            else "the price of late gradients was measured for pipelines, where all are late alike"
        )
        decided = (
            "who is in a round is decided while the job runs: its seconds, ages and steps are of a run in virtual "
            f"time; {price}, not for quorums"
        )
        said = [decided]
        if facts.least_share < LITTLE:
            missed = "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"
            said.append(f"the least heard worker brings {facts.least_share:.2f} of an even share of gradients{missed}")
        return said


class Search:
    """Trials of quorums, and the most rounds that anything was late in each run."""

    def __init__(self, trials: Trials) -> None:
        self.trials, self.job = trials, trials.job
        self.options: dict[Key, Option] = trials.options  # type: ignore[assignment]
        self.oldest: dict[Key, int] = {}
        self.seconds = sampled(self.job.compute_times(), self.job.cluster.num_workers, seed=self.job.seed)

    def trial(self, base: Option, setting: Quorum) -> Trial:
        rounds = runs.rounds_of(base, setting, self.job, self.seconds)

        def run() -> Option:
            found = runs.run(runs.by(base, setting), self.job, self.job.compute_times(), rounds)
            self.oldest[base.name, setting] = found.oldest
            option = runs.measured(base, setting, self.job, found)
            return replace(option, longer=runs.longer_of(base, setting, self.job, rounds))

        return Trial(runs.words_of(setting, base), runs.work_of_run(base.schedule, setting, rounds), run)

    def tried(self, base: Option, setting: Quorum) -> None:
        """Run a schedule under a setting, if there is time and it was not run."""
        self.trials.tried((base.name, setting), self.trial(base, setting))

    def try_all(self, base: Option, listed: Sequence[Quorum]) -> None:
        """Run a schedule under all settings that there is time for; under one in any case if all must be quorums."""
        trials = [((base.name, setting), self.trial(base, setting)) for setting in listed]
        self.trials.try_all(trials, in_any_case=bool(self.job.quorum))

    def search(self, bases: Sequence[Option]) -> None:
        """Run the best schedules of different sizes under the quorums that suit them, then what is near the best."""
        kinds: dict[tuple[int, ...], list[Option]] = {}
        for base in bases:
            kinds.setdefault(runs.sizes_of(base.schedule), []).append(base)
        slow = [worker for worker, _ in self.trials.slowdown.slow]
        for first, *_ in list(kinds.values())[:KEPT]:
            for start in starts_of(first.schedule, slow):
                self.tried(first, runs.setting_of(first, start, self.job, self.seconds))
        for _ in range(REFINEMENTS):
            if not self.options:
                return
            best = self.best()
            for base, setting in self._near(*best, kinds):
                self.tried(base, setting)
            if self.best() == best:
                return

    def best(self) -> Key:
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

    def _near(
        self, name: str, setting: Quorum, kinds: dict[tuple[int, ...], list[Option]]
    ) -> Iterator[tuple[Option, Quorum]]:
        """One member more or less, half and twice the queue, and other schedules with groups of these sizes.

        Queues only as far as that changes the run.
        """
        sizes, oldest = runs.sizes_of(self.options[name, setting].schedule), self.oldest[name, setting]
        base = next(one for one in kinds[sizes] if one.name == name)
        if oldest > setting.staleness // 2 > 0:
            yield base, replace(setting, staleness=setting.staleness // 2)
        if oldest >= setting.staleness < runs.MOST_LATE:
            yield base, replace(setting, staleness=min(runs.MOST_LATE, 2 * setting.staleness))
        if isinstance(setting.quorum, int):
            for number in (setting.quorum - 1, setting.quorum + 1):
                if 2 <= number < sizes[-1]:
                    yield base, runs.setting_of(base, number, self.job, self.seconds)
        for other in kinds[sizes][: 1 + ALIKE]:
            yield other, runs.setting_of(other, setting.quorum, self.job, self.seconds)


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
    return [runs.setting_of(base, start, job, seconds) for start in starts]


def starts_of(schedule: Schedule, slow: Sequence[int]) -> list[QuorumStart | int]:
    """Who starts rounds: all members but the slow ones of every group, or all but one; half of the smallest; the first.

    Args:
        schedule: of groups.
        slow: workers that are always slow.
    """
    sizes = runs.sizes_of(schedule)
    is_slow = np.isin(np.arange(schedule.num_workers), slow)
    left = [int((~is_slow[list(group.members)]).sum()) for phase in runs.phases_of(schedule) for group in phase]
    usual = min((number for number in left if number), default=1) if len(slow) else sizes[0] - 1
    numbers = [number for number in (usual, sizes[0] // 2) if 2 <= number < sizes[-1]]
    return [*dict.fromkeys(numbers), QuorumStart.SOLO]


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
        and runs.sizes_of(option.schedule) not in {(), (job.cluster.num_workers,)}
    ]
    return sorted(able, key=time)


def memory_of_groups(job: Job) -> float:
    """What a worker keeps under a quorum of groups, whatever they are and however long its queue."""
    everybody = GroupPhases((Phase.from_groups(job.cluster.num_workers, [range(job.cluster.num_workers)]),))
    return memory_bytes(Static(phases=everybody, when=Quorum(quorum=QuorumStart.SOLO)), job)


def _rules(trials: Trials) -> list[Option]:
    """The catalogue's rules, if all workers were alike."""
    clock, until = trials.clock, trials.until
    stop = clock.position() + MEASURED_SHARE * max(0.0, until - clock.position())
    rules = [name for name in registry.names() if registry.entry(name).kind == "rule"]
    return competitors(calm(trials.job), until=stop, stop=stop, clock=clock, names=rules)


def _recommended(chosen: Option, options: Sequence[Option], job: Job) -> str:
    """Which quorum pays for which imbalance, against All-Reduce in lockstep."""
    usual = [option for option in options if option.is_plain and option.pace == 1 and not option.late]
    base = best_of(usual or [all_reduce(job)])  # the limits may leave it out
    ratio, what = gain(chosen, base, job.data), _imbalance(job)
    facts = chosen.facts
    assert facts is not None, "chosen is a quorum"
    if ratio.ratio <= 1 or Slowdown.of(job).is_even:
        saved = "; its groups save that without a quorum, too" if ratio.ratio > 1 and facts.of else ""
        return (
            f"recommended: All-Reduce without a quorum. {what}; {facts.words} is predicted to be {ratio} as fast, late "
            f"gradients counted{saved}"
        )
    sure = "" if ratio.low > 1 else ", which the prediction cannot tell from All-Reduce"
    return (
        f"recommended: {facts.words} with a queue of {facts.bound}. {what}; it is predicted to reach a loss {ratio} as "
        f"fast as All-Reduce in every step{sure}"
    )


def _imbalance(job: Job) -> str:
    slowdown, what = Slowdown.of(job), []
    if slowdown.slow:
        worker, factor, others = slowdown.slowest
        what.append(f"worker {worker} always takes {factor:.3g} times as long{others}")
    if slowdown.has_spikes:
        what.append(f"some steps take up to {slowdown.spike:.3g} times as long")
    return " and ".join(what).capitalize() if what else "No worker is slow and no step takes much longer than others"
