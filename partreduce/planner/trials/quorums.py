"""Quorums: All-Reduce whose rounds start when some have come, under a few settings that answer what slows workers.

Each is run in virtual time (`quorum_runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from partreduce.planner.gain import decisive_time, gain
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import measure
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.slowdown import Slowdown, weighs_quorums
from partreduce.planner.trials import quorum_runs as runs
from partreduce.planner.trials.kit import Kind, Trial, Trials, best_of
from partreduce.schedulers import registry
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.partial import PartialAllReduce, QuorumStart
from partreduce.topo.timing.quorum import sampled

LITTLE = 0.5
"""A worker that brings less than this part of an even share is hardly heard."""


class Quorums(Kind):
    """eager-SGD's kind: All-Reduce whose rounds start when a quorum has come."""

    word, name = "partial", "quorums"

    def weighs(self, job: PlanRequest) -> bool:
        return weighs_quorums(job)

    def options(self, trials: Trials) -> list[CandidateSchedule]:
        """See `Kind`; one is run in any case if nothing else is asked for."""
        job = trials.job
        base = all_reduce(job)
        if not within_limits(base.schedule, job.limits):
            return []
        seconds = sampled(job.compute_times(), job.cluster.num_workers, seed=job.seed)
        listed = [(setting, trial(base, setting, job, seconds)) for setting in settings(base, job, seconds)]
        trials.try_all(listed, in_any_case=bool(job.quorum))
        return list(trials.options.values())

    def reasons(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
        """See `Kind`: which quorum pays for which imbalance, what it brings and what it holds."""
        facts, count = chosen.quorum, job.cluster.num_workers
        assert facts is not None, "chosen is one of this kind"
        brings = (
            f"a step of it is a round: {facts.active:.3g} of {count} workers are in one on average, "
            f"{facts.gradients:.3g} gradients, {facts.gradients_per_second:.4g} a second; they are {facts.age:.2g} "
            f"rounds late on average, which is {facts.delay:.2g} of All-Reduce's steps, and never more than "
            f"{facts.bound}"
        )
        models = facts.memory_bytes / (job.hardware.model_bytes or 1)
        holds = f"it keeps at most {models:.3g} times the model beside the parameters, so that results may wait"
        return [_recommended(chosen, options, job), brings, holds]

    def beside(self, best: CandidateSchedule, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
        """See `Kind`: what the best quorum would gain."""
        if not chosen.time > 0 or best.facts is None:
            return []
        against = gain(best, chosen, job.data)
        dear = decisive_time(best, job) > decisive_time(chosen, job)
        pays = "it does not pay if delay costs as much as it may" if dear else "what was taken is simpler"
        pays = "it does not pay" if against.ratio <= 1 else pays
        return [f"a quorum is predicted to be {against} as fast at best ({best.facts.words}): {pays}"]

    def cautions(self, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
        facts = chosen.facts
        assert facts is not None, "chosen is one of this kind"
        decided = (
            "who is in a round is decided while the job runs: its seconds, ages and steps are of a run in virtual "
            "time; the price of late gradients was measured for pipelines, where all are late alike, not for quorums"
        )
        said = [decided]
        if facts.least_share < LITTLE:
            missed = "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"
            said.append(f"the least heard worker brings {facts.least_share:.2f} of an even share of gradients{missed}")
        return said


def trial(
    base: CandidateSchedule, setting: PartialAllReduce, job: PlanRequest, seconds: npt.NDArray[np.float64]
) -> Trial:
    """All-Reduce under a setting, before it is run; `seconds` as in `settings`."""
    count, rounds = job.cluster.num_workers, runs.rounds_of(base, setting, job, seconds)

    def run() -> CandidateSchedule:
        return runs.measured(base, setting, job, runs.run(runs.by(base, setting), job, job.compute_times(), rounds))

    return Trial(runs.words_of(setting, count), runs.work_of_run(setting, count, rounds), run)


def all_reduce(job: PlanRequest) -> CandidateSchedule:
    """Synchronous All-Reduce in every step, without a codec, by its cheapest algorithm."""
    return measure(registry.build("allreduce", job.cluster), replace(job, codec=Codec.NONE))


def settings(base: CandidateSchedule, job: PlanRequest, seconds: npt.NDArray[np.float64]) -> list[PartialAllReduce]:
    """Of All-Reduce: all but the slow workers or one, half of them, majority, and solo, with queues that suit them.

    `seconds` (samples, num_workers) are those of steps.
    """
    count, slow = job.cluster.num_workers, len(Slowdown.of(job).slow)
    numbers = [number for number in (count - max(1, slow), count - 1, count // 2) if 2 <= number < count]
    starts: list[QuorumStart | int] = [*dict.fromkeys(numbers), QuorumStart.MAJORITY, QuorumStart.SOLO]
    return [runs.setting_of(base, start, job, seconds) for start in starts]


def _recommended(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> str:
    """Which quorum pays for which imbalance, against synchronous All-Reduce."""
    usual = [option for option in options if option.is_plain and option.steps_per_round == 1 and not option.late]
    base = best_of(usual or [all_reduce(job)])  # the limits may leave it out
    ratio, imbalance = gain(chosen, base, job.data), _imbalance(job)
    facts = chosen.facts
    assert facts is not None, "chosen is a quorum"
    if ratio.ratio <= 1 or Slowdown.of(job).is_even:
        return (
            f"recommended: All-Reduce without a quorum. {imbalance}; {facts.words} is predicted to be {ratio} as fast, "
            "late gradients counted"
        )
    sure = "" if ratio.low > 1 else ", which the prediction cannot tell from All-Reduce"
    return (
        f"recommended: {facts.words} with a queue of {facts.bound}. {imbalance}; it is predicted to reach a loss "
        f"{ratio} as fast as All-Reduce in every step{sure}"
    )


def _imbalance(job: PlanRequest) -> str:
    slowdown, found = Slowdown.of(job), []
    if slowdown.slow:
        worker, factor, others = slowdown.slowest
        found.append(f"worker {worker} always takes {factor:.3g} times as long{others}")
    if slowdown.has_spikes:
        found.append(f"some steps take up to {slowdown.spike:.3g} times as long")
    return " and ".join(found).capitalize() if found else "No worker is slow and no step takes much longer than others"
