"""Why a schedule is recommended, and what to know about it: the planner's numbers as sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from partreduce.planner.delay import Delay
from partreduce.planner.gain import TIE, contenders, counted, is_unpriced, regrets, times_by_case
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.outer_prices import FRAGMENTS
from partreduce.planner.plan import Plan
from partreduce.planner.recommend import gain_of, ms, permitted, recommend
from partreduce.planner.steps_model import BORNE, LOST, MANY, Optimizer
from partreduce.planner.travel import worth
from partreduce.report import kinds
from partreduce.report.payoff import late_and_small
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.pilot import Pilot
from partreduce.topo.strategies.axes import AllReduceAlgorithm


def explained(planned: Plan, job: PlanRequest) -> Plan:
    """The plan with all reasons and cautions: the general ones, those of single kinds, and its own."""
    chosen, ended = planned.recommendation, planned.answer.ended if job.searches else "its effort is quick"
    return replace(
        planned,
        reasons=[
            *reasons(chosen, planned.options, job),
            *kinds.reasons(chosen, planned.options, job),
            *late_and_small(chosen, planned.options, job),
            *planned.reasons,
        ],
        cautions=[
            *cautions(chosen, job, ended),
            *kinds.cautions(chosen, job),
            *planned.cautions,
            *kinds.not_reached(planned.left_out, planned.answer),
            *kinds.not_weighed(job),
        ],
    )


def reasons(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """Why it is recommended, against All-Reduce as a user would otherwise run it. One sentence each."""
    costs = f"it communicates {ms(chosen.communication)} per step and takes {ms(chosen.step_seconds)} per step in all"
    waiting = chosen.waiting if chosen.waiting > 1e-6 * chosen.step_seconds else 0.0  # the rest is rounding
    said = [f"{costs}, of which {ms(waiting)} are waiting"]
    said += _compared(chosen, options, job)
    if chosen.schedule.strategy.averages_gradients and not chosen.late:
        said.append("it averages gradients in every step, which is what other schedules' steps are counted against")
    elif chosen.surprise is not None:
        said.append(
            f"it is predicted to need {chosen.steps_ratio:.2f} times All-Reduce's steps, of which its own run in the "
            f"pilot changed {chosen.surprise:+.2f}"
        )
    else:
        said.append(
            f"it is predicted to need {chosen.steps_ratio:.2f} times All-Reduce's steps on {job.data} data "
            f"({chosen.basis} lay within {chosen.steps_ratio_error(job.data):.0%} of the prediction)"
        )
    said += _paced(chosen)
    if chosen.delay is Delay.LATE and not chosen.gap:
        said.append(
            "its averaging runs during computing and comes one round late, as its file says; it needs memory for "
            "one more copy of the parameters, and --sync synchronous leaves such schedules out"
        )
    if chosen.algorithm is AllReduceAlgorithm.HIERARCHICAL:
        said.append("its groups add up inside nodes first, as its file says: algorithm hierarchical")
    if job.pilot is not None:
        said.append(_changed_by(job.pilot, chosen, options, job))
    return said


def _paced(chosen: CandidateSchedule) -> list[str]:
    """Who takes fewer steps a round, and the loop that such a schedule needs."""
    if isinstance(chosen.steps_per_round, int):
        return []
    worker_steps, most = chosen.schedule.worker_steps(), chosen.schedule.largest_steps_per_round
    if (worker_steps == most).all():
        return []
    slow = [
        f"worker {worker} takes {worker_steps[worker]}"
        for worker in range(len(worker_steps))
        if worker_steps[worker] < most
    ]
    said = (
        f"workers take {most} steps a round, {', '.join(slow[:4])}{', …' * (len(slow) > 4)}, so that no worker waits; "
        "write the training loop as `for batch in optimizer.batches(loader)`, which ends all of them at the same round"
    )
    return [said]


def _changed_by(pilot: Pilot, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> str:
    """What a pilot cost, and what would be recommended without it."""
    blind = replace(job, pilot=None, take=None)
    shipped, priced = blind.steps_model, job.steps_model
    usual = []
    for option in options:
        if math.isfinite(option.steps_ratio) and option.step_seconds > 0:
            blind_option = replace(option, steps_ratio=option.steps_ratio - (option.surprise or 0.0), surprise=None)
            steps = blind_option.time_in(shipped, priced, delay=True) / option.step_seconds
            usual.append(replace(blind_option, steps_ratio=steps, model=shipped))
    found = recommend(usual, blind)
    told = f"the pilot took {pilot.cost:,} steps of your job"
    if found.name == chosen.name:
        return f"{told}; without it the same would be recommended"
    times = next(option for option in options if option.name == found.name).time / chosen.time
    return f"{told}; without it {found.name} would be recommended, which by its prices takes {times:.2f} times as long"


def _compared(chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
    """The recommendation against the best plain alternative, what was set aside for it, and sums in every step."""
    allowed, said = permitted(options, job), []
    against = gain_of(chosen, options, job)
    fastest = min(allowed, key=lambda option: option.time, default=chosen)  # what is taken may keep no limit
    if against is not None and not chosen.is_plain:
        said.append(
            f"it is predicted to reach a loss {against} as fast as the best plain alternative, "
            f"{against.alternative.name} ({ms(against.alternative.step_seconds)} per step)"
        )
    if fastest.time < chosen.time * (1 - 1e-9) and job.objective is Objective.BALANCED:
        plain = [] if against is None or against.alternative is fastest or against.ratio >= 1 else [against.alternative]
        said += [_not_taken(option, chosen, allowed, job) for option in (*plain, fastest)]
    elif chosen.is_plain and fastest is chosen:
        said.append("no schedule that averages over fewer workers is predicted to train faster")
    every = [o for o in options if o.is_plain and o.steps_per_round == 1 and o is not chosen]
    best = min(every, key=lambda option: option.time, default=None)
    is_said = against is not None and not chosen.is_plain and against.alternative is best
    if chosen.time <= 0:
        return said
    if chosen.is_plain and chosen.steps_per_round == 1:  # what is recommended is All-Reduce in every step, at its best
        said += [
            f"All-Reduce in every step as it is usually run would take {one.time / chosen.time:.2f} times as long "
            f"({one.name}, {ms(one.step_seconds)} per step)"
            for one in every
            if one.is_usual
        ]
    elif best is not None and not (is_said and best.is_usual):
        said.append(
            f"All-Reduce in every step would take {best.time / chosen.time:.2f} times as long at its best "
            f"({best.name}, {ms(best.step_seconds)} per step){_beside_usual(best, chosen, options)}"
        )
    return said


def _beside_usual(best: CandidateSchedule, chosen: CandidateSchedule, options: Sequence[CandidateSchedule]) -> str:
    """What All-Reduce as torch runs it takes, where its best is another one."""
    usual = [option for option in options if option.is_usual and option is not best and option is not chosen]
    return "".join(
        f", and {one.time / chosen.time:.2f} times as long as it is usually run ({one.name}, "
        f"{ms(one.step_seconds)} per step)"
        for one in usual[:1]
    )


def _not_taken(
    fastest: CandidateSchedule, chosen: CandidateSchedule, allowed: Sequence[CandidateSchedule], job: PlanRequest
) -> str:
    """That an option is predicted to be faster than the recommendation, and why it is not taken."""
    faster = f"{fastest.name} is predicted to be {chosen.time / fastest.time:.2f} times as fast as it"
    return faster if job.take is not None else f"{faster}, but {_why_not(fastest, chosen, allowed, job)}"


def why_not(
    fastest: CandidateSchedule, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest
) -> str:
    """Why an option with less predicted time than the recommendation is not taken, as a clause."""
    return (
        "another one was asked for" if job.take is not None else _why_not(fastest, chosen, permitted(options, job), job)
    )


def _why_not(
    fastest: CandidateSchedule, chosen: CandidateSchedule, allowed: Sequence[CandidateSchedule], job: PlanRequest
) -> str:
    if job.objective is not Objective.BALANCED:
        return f"the objective is {job.objective}"
    if not job.bears_drift(fastest.drift.value or 0.0):
        return (
            f"workers drift apart on {job.data} data, and under {job.optimizer} test networks did not reach their loss "
            "so; `partreduce measure` tries it on your job"
        )
    if fastest.may_fail:
        return f"{lost(fastest, job)}; `partreduce measure` tries it on your job"
    if is_unpriced(fastest) and not is_unpriced(chosen):
        return (
            "it averages less often than any schedule that was measured, so its steps are a guess; `partreduce "
            "measure` tries it on your job"
        )
    of = dict(zip(map(id, both := [*allowed, fastest, chosen]), counted(both, job), strict=True))
    worst = of[id(fastest)] / of[id(chosen)]
    uncoded = worst * (1 - worth(fastest.schedule)) / (1 - worth(chosen.schedule))
    if worst > 1 >= uncoded:
        return (
            f"steps with {fastest.transport.codec} took longer in our lab than predicted, so it has to save more than "
            f"{worth(fastest.schedule):.0%}"
        )
    worst = uncoded
    if math.isinf(worst):
        return "with averages as late your pilot's loss did not fall"
    if worst > 1 + TIE:
        most = "as your pilot leaves open" if job.pilot is not None else "as on other tasks"
        select = "--select takes it all the same"
        if fastest.facts is not None and fastest.facts.by_task:
            there = float((times_by_case([fastest], job) / times_by_case([chosen], job)).max())
            return f"on the task that suits it least it would take {max(worst, there):.2f} times as long; {select}"
        if fastest.facts is not None and not (fastest.quorum or fastest.gap):
            return f"if its steps cost as much {most}, it would take {worst:.2f} times as long; {select}"
        asked = "partial" if fastest.quorum else "iteration_gap" if fastest.gap else fastest.delay
        return (
            f"if delay costs as much {most}, it would take {worst:.2f} times as long; --sync {asked} takes it all the "
            "same"
        )
    rivals = contenders([*allowed, chosen], job)
    worst_of = dict(zip(map(id, rivals), regrets(rivals, job), strict=True))
    regret, ours = worst_of.get(id(fastest), 1.0), worst_of.get(id(chosen), 1.0)
    where = "as far as your pilot leaves open" if job.pilot is not None else "on the task that suits it least"
    if regret > ours * (1 + TIE):
        return f"{where} it would take {regret:.2f} times as long as the best, and this one {ours:.2f} times"
    simpler = f"because it is simpler: {_phases(chosen)}, not {_phases(fastest)}"
    if fastest.time * (1 + TIE) < chosen.time:  # a pessimistic price has decided
        return f"{where} it would take {worst:.2f} times as long; within {TIE:.0%} the other is chosen {simpler}"
    return f"within {TIE:.0%} it is chosen {simpler}"


def _phases(option: CandidateSchedule) -> str:
    if option.is_plain:
        return "one group of all workers"
    if option.quorum:
        return f"one group of all workers with {option.quorum.memory_bytes / 1e6:.3g} MB of results"
    if option.facts and not option.gap and not option.schedule.is_mixing:
        return "a protocol that decides while the job runs"
    if option.gap:
        return f"one graph with {option.gap.memory_bytes / 1e6:.3g} MB of queues"
    distinct = option.num_phases
    return f"{distinct} different round{'s' * (distinct != 1)} in a period of {option.period}"


def cautions(chosen: CandidateSchedule, job: PlanRequest, ended: str = "its time was over") -> list[str]:
    """What was not proved, and what the user should know; `ended` says why the search ended."""
    said = []
    if chosen.extrapolated:
        said.append(_guessed(chosen))
    said += _presumed(chosen, job)
    if chosen.status == "feasible":
        said.append(f"better schedules may exist: the search ended because {ended}, not at a proof")
    elif chosen.status == "catalogue" and not chosen.is_plain:
        said.append("the recommendation is a published construction; that nothing better exists is not proved")
    if job.pilot is not None and job.pilot.num_workers != job.cluster.num_workers:
        said.append(
            f"the pilot had {job.pilot.num_workers} workers and this cluster has {job.cluster.num_workers}: its prices "
            "change with the number, as docs/pilot.md shows"
        )
    if job.data is Data.SHUFFLED and (chosen.drift.value or 0) > 1:
        drift = chosen.drift.value or math.inf
        slower = job.steps_model.steps_ratio(0.0, drift, gradients=True)
        said.append(
            f"with data that differs between workers it would need about {slower:.1f} times All-Reduce's steps "
            f"(drift {drift:.3g}); say --data per-worker or per-node if yours does"
        )
    return said


def _presumed(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    """That the learning rate is not at its limit, where a test network did not reach its loss; a pilot tells."""
    if not chosen.may_fail:
        return []
    way = "--sync synchronous" if _is_too_late(chosen) else f"--max consensus-distance={BORNE:g}"
    said = (
        f"it assumes that your learning rate is not the largest with which your network trains: {lost(chosen, job)}; "
        f"{way} leaves them out, and `partreduce measure FILE.py:NAME` tries it (docs/pilot.md)"
    )
    return [said]


def lost(option: CandidateSchedule, job: PlanRequest) -> str:
    """Under which optimizers a measured network did not reach its loss with an option's metrics."""
    is_many = job.cluster.num_workers >= MANY
    may_be = [one for one in Optimizer if job.optimizer in {None, one}]
    beyond = " and ".join(str(one) for one in may_be if option.is_among(LOST[one][is_many]))
    how = "late" if _is_too_late(option) else "rare"
    return f"under {beyond} one of five test networks did not reach its loss with averages as {how}"


def _is_too_late(option: CandidateSchedule) -> bool:
    """Whether a network failed with averages as late; else it did with averages as rare."""
    return option.late_distance >= option.model.lost.late


def _guessed(chosen: CandidateSchedule) -> str:
    """Why the steps of what lies outside of the measured are a guess, and what would tell them."""
    if (count := chosen.schedule.strategy.payload.num_fragments) > 1:
        return (
            f"its model is cut into {count} fragments and at most {FRAGMENTS} were measured, so its steps are a guess, "
            "and so is its speedup; compare it with All-Reduce for some rounds on your own job"
        )
    return (
        "it averages less often than any schedule that was measured, so its steps are a guess, and so is its speedup; "
        "`partreduce measure FILE.py:NAME` prices it on your own job (docs/pilot.md)"
    )
