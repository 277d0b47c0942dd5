"""Explain a recommendation in sentences: reasons and cautions, with the planner's numbers.

They also state whether a codec, or gradients one step late, would pay off.
"""

from __future__ import annotations

import math
from dataclasses import replace

from partreduce.planner.axes import Axes
from partreduce.planner.job import Data, Delay, PlanRequest
from partreduce.planner.measuring import (
    WORTH,
    WORTH_OVERLAPPED,
    cheapest_transports,
    coded_words,
    sample_option,
    traveling,
    work_of,
    worth,
)
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.plan import Plan
from partreduce.planner.recommend import (
    TIE,
    Options,
    allowed_options,
    best_plain,
    contenders,
    decisive_time,
    gain_of,
    is_outer,
    is_unpriced,
    ms,
    own_error,
    recommend,
    regrets,
    simplest,
    times_by_case,
    wins_surely,
)
from partreduce.planner.steps_model import BORNE, LOST, MANY, OUTER_FRAGMENTS, Optimizer
from partreduce.report import kinds
from partreduce.schedulers.synthesis.problem import Objective
from partreduce.topo.hardware import CodecSeconds
from partreduce.topo.pilot import Pilot
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm, Codec, Transport
from partreduce.topo.timing.cost import communication

LITTLE_WORK = 0.1
"""The most nominal seconds that computing metrics for one sentence may take."""
REPORTED = 0.05
"""The smallest fraction of time saved for which a codec is suggested if the job allows none."""


def add_reasons(planned: Plan, job: PlanRequest) -> Plan:
    """Return the plan with the reasons and cautions of this package added to those found while planning."""
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


def reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return the reasons for a recommendation, one sentence each: its costs, and comparisons with other candidates."""
    costs = f"it communicates {ms(chosen.communication)} per step and takes {ms(chosen.step_seconds)} per step in all"
    waiting = chosen.waiting if chosen.waiting > 1e-6 * chosen.step_seconds else 0.0  # the rest is rounding error
    lines = [f"{costs}, of which {ms(waiting)} are waiting", *_comparisons(chosen, options, job)]
    steps = f"it is predicted to need {chosen.steps_ratio:.2f} times All-Reduce's steps"
    if chosen.schedule.strategy.averages_gradients and not chosen.late:
        lines.append("it averages gradients in every step, which is what other schedules' steps are counted against")
    elif chosen.surprise is not None:
        lines.append(f"{steps}, of which its own run in the pilot changed {chosen.surprise:+.2f}")
    else:
        error = chosen.steps_ratio_error(job.data)
        lines.append(f"{steps} on {job.data} data ({chosen.basis} lay within {error:.0%} of the prediction)")
    lines += filter(None, [_unequal_steps(chosen)])
    if chosen.delay is Delay.LATE and not chosen.gap:
        lines.append(
            "its averaging runs during computing and comes one round late, as its file says; it needs memory for "
            "one more copy of the parameters, and --sync synchronous leaves such schedules out"
        )
    if chosen.algorithm is AllReduceAlgorithm.HIERARCHICAL:
        lines.append("its groups add up inside nodes first, as its file says: algorithm hierarchical")
    if job.pilot is not None:
        lines.append(_changed_by(job.pilot, chosen, options, job))
    return lines


def _unequal_steps(chosen: CandidateSchedule) -> str:
    """Return a sentence on the workers that take fewer steps per round, and the training loop that this needs."""
    if isinstance(chosen.steps_per_round, int):
        return ""  # a rule of 10^9 workers has no table of them
    steps, most = chosen.schedule.worker_steps().tolist(), chosen.schedule.largest_steps_per_round
    slow = [f"worker {worker} takes {count}" for worker, count in enumerate(steps) if count < most]
    if not slow:
        return ""
    return (
        f"workers take {most} steps a round, {', '.join(slow[:4])}{', …' * (len(slow) > 4)}, so that no worker waits; "
        f"training then takes {1 / chosen.progress:.2f} times the steps; write the training loop as "
        "`for batch in optimizer.batches(loader)`, which ends all of them at the same round"
    )


def _changed_by(pilot: Pilot, chosen: CandidateSchedule, options: Options, job: PlanRequest) -> str:
    """Return a sentence: the steps that the pilot took, and the schedule that would be recommended without it."""
    blind = replace(job, pilot=None, take=None)
    usual = []
    for option in options:
        if math.isfinite(option.steps_ratio) and option.step_seconds > 0:
            alone = replace(option, steps_ratio=option.steps_ratio - (option.surprise or 0.0), surprise=None)
            steps = alone.time_in(blind.steps_model, job.steps_model, delay=True) / option.step_seconds
            usual.append(replace(alone, steps_ratio=steps, model=blind.steps_model))
    found, cost = recommend(usual, blind), f"the pilot took {pilot.cost:,} steps of your job"
    if found.name == chosen.name:
        return f"{cost}; without it the same would be recommended"
    times = next(option for option in options if option.name == found.name).time / chosen.time
    return f"{cost}; without it {found.name} would be recommended, which by its prices takes {times:.2f} times as long"


def _comparisons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return sentences that compare the recommendation with All-Reduce every k steps, and with faster candidates."""
    allowed, lines = allowed_options(options, job), []
    against = gain_of(chosen, options, job)
    fastest = min(allowed, key=lambda option: option.time, default=chosen)  # the chosen option may exceed the limits
    if against is not None and not chosen.is_plain:
        lines.append(
            f"it is predicted to reach a loss {against} as fast as the best plain alternative, "
            f"{against.alternative.name} ({ms(against.alternative.step_seconds)} per step)"
        )
    if fastest.time < chosen.time * (1 - 1e-9) and job.objective is Objective.BALANCED:
        plain = [] if against is None or against.alternative is fastest or against.ratio >= 1 else [against.alternative]
        for one in (*plain, fastest):
            faster = f"{one.name} is predicted to be {chosen.time / one.time:.2f} times as fast as it"
            lines.append(faster if job.take is not None else f"{faster}, but {why_not(one, chosen, allowed, job)}")
    elif chosen.is_plain and fastest is chosen:
        lines.append("no schedule that averages over fewer workers is predicted to train faster")
    if chosen.time <= 0:
        return lines
    every = [one for one in options if one.is_plain and one.steps_per_round == 1 and one is not chosen]
    best = min(every, key=lambda option: option.time, default=None)
    is_said = against is not None and not chosen.is_plain and against.alternative is best

    def taking(option: CandidateSchedule, setting: str) -> str:
        times = f"{option.time / chosen.time:.2f} times as long"
        return f"{times}{setting} ({option.name}, {ms(option.step_seconds)} per step)"

    usual = [one for one in every if one.is_usual]
    if chosen.is_plain and chosen.steps_per_round == 1:  # All-Reduce in every step, in its best setting
        lines += [f"All-Reduce in every step as it is usually run would take {taking(one, '')}" for one in usual]
    elif best is not None and not (is_said and best.is_usual):
        other = [f", and {taking(one, ' as it is usually run')}" for one in usual if one is not best][:1]
        lines.append(f"All-Reduce in every step would take {taking(best, ' in its best setting')}{''.join(other)}")
    return lines


def why_not(fastest: CandidateSchedule, chosen: CandidateSchedule, options: Options, job: PlanRequest) -> str:
    """Return, as a clause, why a candidate with less predicted time than the recommendation is not recommended."""
    measured = "`partreduce measure` tries it on your job"
    if job.objective is not Objective.BALANCED:
        return f"the objective is {job.objective}"
    if not job.bears_drift(fastest.drift.value or 0.0):
        return (
            f"workers drift apart on {job.data} data, and under {job.optimizer} test networks did not reach their loss "
            f"so; {measured}"
        )
    if fastest.may_fail:
        return f"{failed_networks(fastest, job)}; {measured}"
    if is_unpriced(fastest) and not is_unpriced(chosen):
        return f"{_beyond(fastest)}, so its steps are a guess; {measured}"
    worst = decisive_time(fastest, job) / decisive_time(chosen, job)
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
        longer = f"{most}, it would take {worst:.2f} times as long"
        if fastest.facts is not None and not (fastest.quorum or fastest.gap):
            return f"if its steps cost as much {longer}; --select takes it all the same"
        option = "partial" if fastest.quorum else "iteration_gap" if fastest.gap else fastest.delay
        return f"if delay costs as much {longer}; --sync {option} takes it all the same"
    able = [*allowed_options(options, job), chosen]
    rivals, simple = contenders(able, job), simplest(able, job)
    if simple is not None and not any(fastest is one for one in rivals):
        is_beaten = wins_surely(fastest, simple, job)  # outer steps must also beat the best of all others
        return _not_sure(fastest, *((chosen, "this one") if is_beaten else (simple, "the best simple schedule")), job)
    worst_of = dict(zip(map(id, rivals), regrets(rivals, job), strict=True))
    regret, ours = worst_of.get(id(fastest), 1.0), worst_of.get(id(chosen), 1.0)
    where = "as far as your pilot leaves open" if job.pilot is not None else "on the task that suits it least"
    if regret > ours * (1 + TIE):
        return f"{where} it would take {regret:.2f} times as long as the best, and this one {ours:.2f} times"
    simpler = f"because it is simpler: {_phases(chosen)}, not {_phases(fastest)}"
    if fastest.time * (1 + TIE) < chosen.time:  # a pessimistic price decided
        return f"{where} it would take {worst:.2f} times as long; within {TIE:.0%} the other is chosen {simpler}"
    return f"within {TIE:.0%} it is chosen {simpler}"


def _not_sure(fastest: CandidateSchedule, rival: CandidateSchedule, name: str, job: PlanRequest) -> str:
    """Return a clause: why it is not certain that the candidate `fastest` is faster than `rival`.

    Either the prediction's error is too large, or outer steps lose on one task. `name` is the rival's in the clause.
    """
    there = float((times_by_case([fastest], job) / times_by_case([rival], job)).max())
    lack = f"on the task that suits it least it would take {there:.2f} times as long as {name}"
    if there <= 1 or not is_outer(fastest):
        lack = (
            f"it has to beat {name} by more than the {math.expm1(own_error(fastest, job)):.0%} that its prediction "
            f"errs by, and wins by {rival.time / fastest.time - 1:.0%}"
        )
    return f"{lack}; --select takes it all the same"


def _phases(option: CandidateSchedule) -> str:
    if option.is_plain:
        return "one group of all workers"
    if option.quorum:
        return f"one group of all workers with {option.quorum.memory_bytes / 1e6:.3g} MB of results"
    if option.gap:
        return f"one graph with {option.gap.memory_bytes / 1e6:.3g} MB of queues"
    if option.facts and not option.schedule.is_mixing:
        return "a protocol that decides while the job runs"
    distinct = option.num_phases
    return f"{distinct} different round{'s' * (distinct != 1)} in a period of {option.period}"


def cautions(chosen: CandidateSchedule, job: PlanRequest, ended: str = "its time was over") -> list[str]:
    """Return cautions about a recommendation, such as unproved assumptions; `ended` is why the search ended."""
    lines, drift = [], chosen.drift.value or 0.0
    if chosen.extrapolated:
        prices = "`partreduce measure FILE.py:NAME` prices it on your own job (docs/pilot.md)"
        if is_outer(chosen):
            prices = "compare it with All-Reduce for some rounds on your own job"
        lines.append(f"{_beyond(chosen)}, so its steps are a guess, and so is its speedup; {prices}")
    if chosen.may_fail:  # with learning rates at the limit; a pilot measures it
        way = "--sync synchronous" if _is_too_late(chosen) else f"--max consensus-distance={BORNE:g}"
        lines.append(
            "it assumes that your learning rate is not the largest with which your network trains: "
            f"{failed_networks(chosen, job)}; {way} leaves them out, and `partreduce measure FILE.py:NAME` tries it "
            "(docs/pilot.md)"
        )
    if chosen.status == "feasible":
        lines.append(f"better schedules may exist: the search ended because {ended}, not at a proof")
    elif chosen.status == "catalogue" and not chosen.is_plain:
        lines.append("the recommendation is a published construction; that nothing better exists is not proved")
    if job.pilot is not None and job.pilot.num_workers != job.cluster.num_workers:
        lines.append(
            f"the pilot had {job.pilot.num_workers} workers and this cluster has {job.cluster.num_workers}: its prices "
            "change with the number, as docs/pilot.md shows"
        )
    if job.data is Data.SHUFFLED and drift > 1:
        slower = job.steps_model.steps_ratio(0.0, drift, gradients=True)
        lines.append(
            f"with data that differs between workers it would need about {slower:.1f} times All-Reduce's steps "
            f"(drift {drift:.3g}); say --data per-worker or per-node if yours does"
        )
    return lines


def failed_networks(option: CandidateSchedule, job: PlanRequest) -> str:
    """Return a clause on the optimizers under which a network of the steps model's tasks did not reach its loss.

    In those runs averages were as late, or as rare, as those of `option`; the clause says which.
    """
    is_many = job.cluster.num_workers >= MANY
    may_be = [one for one in Optimizer if job.optimizer in {None, one}]
    beyond = " and ".join(str(one) for one in may_be if option.is_among(LOST[one][is_many]))
    how = "late" if _is_too_late(option) else "rare"
    return f"under {beyond} one of five test networks did not reach its loss with averages as {how}"


def _is_too_late(option: CandidateSchedule) -> bool:
    """Return whether training may fail because averages are late (their late distance exceeds `FailurePoint.late`).

    False means that averages are too rare: `option.may_fail` must be true.
    """
    return option.late_distance >= option.model.lost.late


def _beyond(option: CandidateSchedule) -> str:
    """Return a clause: the candidate has more fragments of the model, or rarer averages, than any that was measured."""
    if (count := option.schedule.strategy.payload.num_fragments) > 1:
        return f"its model is cut into {count} fragments and at most {OUTER_FRAGMENTS} were measured"
    return "it averages less often than any schedule that was measured"


def late_and_small(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return up to two sentences: the predicted effects of a codec, and of gradients one step late (a pipeline)."""
    return [line for line in (_codec_pays(chosen, options, job), _pipeline_pays(chosen, options, job)) if line]


def _codec_pays(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> str:
    if chosen.facts is not None:
        return ""
    if job.codec is Codec.NONE:
        if (found := best_with_codec(chosen, options, job)) is None:
            return ""
        best, ratio = found
        return (
            f"--codec any would make training at least {ratio:.2f} times as fast ({best.name}: "
            f"{ms(best.step_seconds)} per step); it rounds what is sent, so it is left to you"
        )
    schedule, is_coded = chosen.schedule, chosen.transport.codec is not Codec.NONE
    plain, *coarser = cheapest_transports(schedule, job)
    transports = [chosen.transport] if is_coded else [costed.transport for costed in coarser]
    if not transports:
        why = schedule.strategy.codec_unsupported_reason(schedule.cluster)
        return f"its sums travel as they are: {why.partition(';')[0]}"
    costs = [(transport, *_on_the_wire(schedule, job, transport)) for transport in transports]
    transport, wire, coding = min(costs, key=lambda one: one[1] + one[2])
    name = " ".join(coded_words(transport))
    if is_coded:
        return (
            f"its sums travel in {name}, as its file says: {ms(wire)} on the wire and {ms(coding)} for "
            f"coding per step, where numbers as they are would take {ms(plain.cost.per_step)}; a codec had no "
            "measurable price in steps (benchmarks/results/late_and_small.md)"
        )
    least = WORTH_OVERLAPPED if schedule.strategy.is_delayed else WORTH
    return (
        f"its sums travel as they are: {name} would cost {ms(coding)} for coding and save "
        f"{ms(plain.cost.per_step - wire)} of wire per step, which makes no step shorter by more than {least:.0%}, as "
        "it has to"
    )


def _on_the_wire(schedule: Schedule, job: PlanRequest, transport: Transport) -> tuple[float, float]:
    """Return the seconds per step of sending with a transport, and those of encoding and decoding."""
    free = replace(job.hardware, codec=tuple((codec.value, CodecSeconds()) for codec in Codec))
    runs = traveling(schedule, transport)
    cost, wire = (communication(runs, one).per_step for one in (job.hardware, free))
    return wire, cost - wire


def best_with_codec(
    chosen: CandidateSchedule, options: Options, job: PlanRequest
) -> tuple[CandidateSchedule, float] | None:
    """Return the best candidate if codecs were allowed, and its predicted speedup over the recommendation.

    Codecs are tried on the recommendation, the best All-Reduce every k steps, and the fastest candidate. The result is
    None if the job already allows codecs, the recommendation was priced by a simulated run (has `facts`), or the
    speedup is too small to report.
    """
    if chosen.facts is not None or job.codec is not Codec.NONE:
        return None
    even = job.at_mean_speeds
    coded, kept = replace(even, codec=None), allowed_options(options, job)
    may = [one for one in kept if not one.schedule.strategy.codec_unsupported_reason(one.schedule.cluster)]
    fastest = min(may, key=lambda option: decisive_time(option, job), default=None)
    seeds = {id(one): one for one in (chosen, best_plain(kept, job), fastest) if one and not one.facts}
    found: list[CandidateSchedule] = []
    for seed in seeds.values():
        name = seed.schedule.name
        if isinstance(seed.steps_per_round, int):  # the best number is chosen again; unequal numbers stay
            name = name.partition("(every=")[0]
        if work_of(seed.schedule, even) <= LITTLE_WORK:
            found += Axes(seed.schedule, coded).options(name)
    best = min(allowed_options(found, coded), key=lambda option: decisive_time(option, job), default=None)
    if best is None or best.transport.codec is Codec.NONE:
        return None
    best = sample_option(best, job)
    ratio = decisive_time(chosen, job) / decisive_time(best, job) if decisive_time(best, job) else 1.0
    return (best, ratio) if ratio * (1 - REPORTED) > 1 else None


def _pipeline_pays(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> str:
    if chosen.delay is Delay.PIPELINE:
        return (
            "its gradients come one step late, the same for all workers, during computing, as its file says; that is "
            f"predicted to take {chosen.steps_ratio:.2f} times All-Reduce's steps; it needs memory for one more "
            "gradient, and --sync synchronous leaves pipelines out"
        )
    if job.sync not in {None, Delay.PIPELINE}:
        return ""
    every = [option for option in allowed_options(options, job) if option.is_plain and option.steps_per_round == 1]
    late = [option for option in every if option.delay is Delay.PIPELINE]
    usual = [option for option in every if option.delay is Delay.SYNCHRONOUS]
    if not late or not usual:
        return ""
    best, other = (min(some, key=lambda option: option.time) for some in (late, usual))
    hidden = other.step_seconds - best.step_seconds
    would = (
        f"a pipeline of gradients would hide {ms(hidden)} of All-Reduce's {ms(other.step_seconds)} per step "
        f"({hidden / max(other.step_seconds, 1e-300):.0%}) and is predicted to need {best.steps_ratio - 1:.0%} more "
        "steps"
    )
    if best.time >= other.time:
        return f"{would}: it does not pay"
    return f"{would}: {best.time / chosen.time:.2f} times as long as the recommendation" if chosen.time > 0 else ""
