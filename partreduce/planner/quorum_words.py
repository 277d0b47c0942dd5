"""What the answer says about quorums: which one pays for the job's imbalance, or that none does, and what to know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partreduce.planner.gain import decisive_time, gain
from partreduce.planner.job import Data
from partreduce.planner.quorums import all_reduce
from partreduce.planner.recommend import permitted
from partreduce.planner.slowdown import Slowdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partreduce.planner.job import Job
    from partreduce.planner.option import Option

LITTLE = 0.5
"""A worker that brings less than this part of an even share is hardly heard."""


def quorum_reasons(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """The recommendation in a sentence, then what it brings and holds; or what the best quorum would bring."""
    facts = chosen.quorum
    if facts is None:
        return _not_recommended(chosen, options, job)
    count = job.cluster.num_workers
    said = [recommended(chosen, options, job), *_beside(chosen, options, job)]
    if facts.of:
        said.append(
            f"{facts.active:.3g} of {count} workers bring something to a round on average, {facts.gradients:.3g} steps "
            f"together, {facts.gradients_per_second:.4g} a second; averages come {facts.age:.2g} rounds late on "
            f"average, which is {facts.delay:.2g} of rounds with a call of everybody, never more than {facts.bound}; "
            "the mean of all models is kept exactly"
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


def _not_recommended(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """What the best quorum would gain, where some were run and another kind was recommended."""
    tried = [option for option in permitted(options, job) if option.quorum]
    if not tried or not chosen.time > 0:
        return []
    best = min(tried, key=lambda option: (option.time, option.name))
    against = gain(best, chosen, job.data)
    assert best.quorum is not None, "kept above"
    dear = decisive_time(best, job) > decisive_time(chosen, job)
    pays = "it does not pay if lateness costs as much as it may" if dear else "what was taken is simpler"
    pays = "it does not pay" if against.ratio <= 1 else pays
    what = f"a quorum is predicted to be {against} as fast at best ({best.quorum.words})"
    return [f"{what}: {pays}"]


def _beside(chosen: Option, options: Sequence[Option], job: Job) -> list[str]:
    """The best quorum of the other kind, of all workers or of groups, where there is one."""
    facts = chosen.quorum
    assert facts is not None, "asked before"
    others = [option for option in options if option.quorum and bool(option.quorum.of) != bool(facts.of)]
    if not others:
        return []
    best = min(others, key=lambda option: (option.time, option.name))
    assert best.quorum is not None, "kept above"
    what = "a quorum of all workers" if facts.of else "a quorum of groups"
    return [f"it is predicted to be {gain(chosen, best, job.data)} as fast as {what} at its best ({best.quorum.words})"]


def recommended(chosen: Option, options: Sequence[Option], job: Job) -> str:
    """Which quorum pays for which imbalance, against All-Reduce in lockstep."""
    usual = [option for option in options if option.is_plain and option.pace == 1 and not option.late]
    usual = usual or [all_reduce(job)]  # the limits may leave it out
    base = min(usual, key=lambda option: (option.time, option.name))
    ratio, what = gain(chosen, base, job.data), _imbalance(job)
    assert chosen.quorum is not None, "asked before"
    if ratio.ratio <= 1 or Slowdown.of(job).is_even:
        saved = "; its groups save that without a quorum, too" if ratio.ratio > 1 and chosen.quorum.of else ""
        return (
            f"recommended: All-Reduce without a quorum. {what}; {chosen.quorum.words} is predicted to be {ratio} as "
            f"fast, late gradients counted{saved}"
        )
    sure = "" if ratio.low > 1 else ", which the prediction cannot tell from All-Reduce"
    return (
        f"recommended: {chosen.quorum.words} with a queue of {chosen.quorum.bound}. {what}; it is predicted to reach a "
        f"loss {ratio} as fast as All-Reduce in every step{sure}"
    )


def quorum_cautions(chosen: Option, job: Job) -> list[str]:
    """What the user of a recommended quorum should know."""
    facts = chosen.quorum
    if facts is None:
        return []
    price = (
        "the price of late averages was measured where all come one round late"
        if facts.of
        else "the price of late gradients was measured for pipelines, where all are late alike"
    )
    decided = (
        "who is in a round is decided while the job runs: its seconds, ages and steps are of a run in virtual time; "
        f"{price}, not for quorums"
    )
    said = [decided]
    if facts.least_share < LITTLE:
        missed = "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"
        said.append(f"the least heard worker brings {facts.least_share:.2f} of an even share of gradients{missed}")
    return said


def _imbalance(job: Job) -> str:
    slowdown, what = Slowdown.of(job), []
    if slowdown.slow:
        worker, factor = max(slowdown.slow, key=lambda one: one[1])
        others = len(slowdown.slow) - 1
        what.append(
            f"worker {worker} always takes {factor:.3g} times as long{f' (and {others} more)' if others else ''}"
        )
    if slowdown.has_spikes:
        what.append(f"some steps take up to {slowdown.spike:.3g} times as long")
    return " and ".join(what).capitalize() if what else "No worker is slow and no step takes much longer than others"
