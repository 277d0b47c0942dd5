"""Describe the kinds of an answer: reasons for the recommended kind, its needs, and the costs of the best others.

The answer also names the kinds that were not weighed, for lack of time, their size, or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from partreduce.console import size
from partreduce.planner.answer import Answer
from partreduce.planner.candidates import KINDS, MOST_ON_REQUEST, all_reduce, is_open, is_thin, why_no_outer_steps
from partreduce.planner.gain import decisive_time, gain
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.option import CandidateSchedule
from partreduce.planner.recommend import ms, permitted
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.trials import best_of
from partreduce.planner.work import MAX_GRAPH_WORKERS
from partreduce.schedulers.synthesis.cluster_shape import has_equal_speeds, holds_rules
from partreduce.topo.metrics.stability import largest_rate
from partreduce.topo.strategies.iteration_gap import IterationGap

NOTHING = "no worker is slow and no step takes longer than others, so there is nothing that a gap could answer"
TOLD = 0.02
"""A step that moves the mean less by this fraction, or a fraction of skipped steps, is reported."""
FEW = 0.75
"""A smaller fraction of the workers, whose gradients would leave as much noise, gets a caution."""
HARDLY = 0.5
"""Gradients with less than this fraction of an even share hardly count."""
USUAL_MOMENTUM = 0.9

Options = Sequence[CandidateSchedule]


def reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return the reasons for the recommended kind, and the costs of the best option of each other kind."""
    said = []
    for word in KINDS:
        able = [one for one in permitted(options, job) if one.facts is not None and one.facts.kind == word]
        if chosen.facts is not None and chosen.facts.kind == word:
            said += WORDS[word].reasons(chosen, options, job)
        elif able:
            beside = _beside_quorum if word == "partial" else _beside
            said += beside(best_of(able), chosen, job)
    return said


def cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    """Return the cautions of a recommendation that was run in virtual time."""
    return [] if chosen.facts is None else WORDS[chosen.facts.kind].cautions(chosen, job)


def _beside(best: CandidateSchedule, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:  # noqa: ARG001
    """Return the cost of the best option of a kind, if another kind is recommended."""
    if not best.time > chosen.time > 0 or best.facts is None:
        return []
    said = (
        f"{KINDS[best.facts.kind].name} are predicted to take {best.time / chosen.time:.2f} times as long at their "
        f"best ({best.name}: {ms(best.step_seconds)} per step, {best.steps_ratio:.2f} times All-Reduce's steps)"
    )
    return [said]


def _gap_reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    slowdown, facts = Slowdown.of(job), chosen.facts
    assert facts is not None, "chosen is one of this kind"
    models = facts.memory_bytes / (job.hardware.model_bytes or 1)
    memory = f"its queues take at most {size(facts.memory_bytes)} of a worker's memory, {models:.3g} times the model"
    if slowdown.is_even:
        return [f"{NOTHING}; without --sync iteration_gap other kinds are weighed, too", memory]
    said = [f"{_answers(chosen, slowdown)}{_gained(chosen, options)}"]
    if facts.unheard:
        count, listed = job.cluster.num_workers, ", ".join(map(str, facts.unheard))
        said.insert(
            0,
            f"worker{'s' * (len(facts.unheard) > 1)} {listed} {'are' if len(facts.unheard) > 1 else 'is'} never "
            f"heard: this is training with {count - len(facts.unheard)} workers, which a cluster without "
            f"{'them' if len(facts.unheard) > 1 else 'it'} could do as well",
        )
    if facts.progress < 1 - TOLD:
        said.append(
            f"some of what it averages is old, so that a step brings the mean {facts.progress:.2f} times as far as "
            "in synchronous rounds; that is in its steps"
        )
    if facts.computed < 1 - TOLD:
        said.append(
            f"{1 - facts.computed:.0%} of all steps are skipped, and no gradient is computed in them; a script's "
            "loop has to skip them, too: for batch in optimizer.batches(loader)"
        )
    able = [option for option in permitted(options, replace(job, gap=None)) if not option.gap]
    if job.gap and able and 0 < (best := best_of(able)).time < chosen.time:
        memory += (
            f"; {best.name} is predicted to take {best.time / chosen.time:.2f} times as long "
            f"({ms(best.step_seconds)} per step) and may be recommended without --sync iteration_gap"
        )
    return [*said, memory]


def _gap_cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    facts, count = chosen.facts, job.cluster.num_workers
    assert facts is not None, "chosen is one of this kind"
    said = _momentum(chosen)
    if chosen.schedule.is_mixing:
        return said
    if job.data is not Data.SHUFFLED:
        said.append(
            "on data that differs between workers, neighbors that kept a gap needed up to 1.7 times the predicted "
            "steps (docs/strategies/iteration-gap.md)"
        )
    said.append(
        "which updates are averaged is decided while the job runs: its consensus distance, drift and steps are "
        "measured in virtual time, not proved, and it does not preserve the mean"
    )
    if facts.progress > 1 + TOLD:
        said.append(
            "what is newer than one's own step is averaged, too, so that a step brings the mean "
            f"{facts.progress:.2f} times as far as synchronous rounds do, as a larger learning rate would: that is "
            "not counted as a gain, and a rate near its limit has to be lowered as much"
        )
    if facts.gradients < FEW:
        said.append(
            "some workers' updates count more than others': its mean has the noise of "
            f"{facts.gradients * count:.0f} workers' gradients, not of {count}"
        )
    if facts.least_share < HARDLY and Slowdown.of(job).slow:
        missed = "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"
        said.append(
            f"the gradients of its least heard worker count {max(0.0, facts.least_share):.2f} of an even share{missed}"
        )
    return said


def _momentum(chosen: CandidateSchedule) -> list[str]:
    """Warn that in the serial order momentum can make worker differences grow at rates that All-Reduce allows."""
    gap = chosen.schedule.strategy.sync
    assert isinstance(gap, IterationGap), "options with facts of a gap keep one"
    borne = largest_rate(chosen.schedule.strategy.graphs[0], USUAL_MOMENTUM, parallel=gap.lag > 0)
    usual = 2 * (1 + USUAL_MOMENTUM)
    if borne > usual / 4:
        return []
    way_out = "" if gap.lag else ", or take the parallel order"
    said = (
        f"with momentum {USUAL_MOMENTUM:g} it bears a rate times curvature of {borne:.2f} only, where All-Reduce bears "
        f"{usual:.1f}: beyond that workers drift apart (docs/strategies/); lower the rate or the momentum{way_out}"
    )
    return [said]


def _answers(chosen: CandidateSchedule, slowdown: Slowdown) -> str:
    gap = chosen.schedule.strategy.sync
    assert isinstance(gap, IterationGap)
    causes = []
    if slowdown.has_spikes:
        causes.append(f"steps that take up to {slowdown.spike:.3g} times as long now and then")
    if slowdown.slow:
        worker, factor, others = slowdown.slowest
        causes.append(f"worker {worker}, always {factor:.3g} times as long{others}")
    means = []
    if gap.skip is not None:
        means.append(f"a worker that is left behind skips up to {gap.skip.limit} steps at once")
    if gap.has_backup:
        means.append("neighbors do not wait for every update")
    if gap.staleness:
        means.append(f"updates up to {gap.staleness} steps old serve")
    return f"its gap answers {' and '.join(causes)}: {', '.join(means) or 'a worker waits for its neighbors only'}"


def _gained(chosen: CandidateSchedule, options: Options) -> str:
    """Compare with the same graph and order without the setting."""
    gap, graph = chosen.schedule.strategy.sync, chosen.schedule.strategy.graphs
    assert isinstance(gap, IterationGap)
    plain = [
        o
        for o in options
        if o.gap and o is not chosen and o.schedule.strategy.sync == IterationGap(update_order=gap.update_order)
    ]
    same = [o for o in plain if o.schedule.strategy.graphs == graph]
    return "".join(f"; without that a step would take {ms(o.step_seconds)}" for o in same[:1])


def _quorum_reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return the imbalance that the quorum suits, its gain and its memory."""
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


def _beside_quorum(best: CandidateSchedule, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    """Return the gain of the best quorum."""
    if not chosen.time > 0 or best.facts is None:
        return []
    against = gain(best, chosen, job.data)
    dear = decisive_time(best, job) > decisive_time(chosen, job)
    pays = "it does not pay if delay costs as much as it may" if dear else "what was taken is simpler"
    pays = "it does not pay" if against.ratio <= 1 else pays
    return [f"a quorum is predicted to be {against} as fast at best ({best.facts.words}): {pays}"]


def _quorum_cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    facts = chosen.facts
    assert facts is not None, "chosen is one of this kind"
    decided = (
        "who is in a round is decided while the job runs: its seconds, ages and steps are of a run in virtual "
        "time; the price of late gradients was measured for pipelines, where all are late alike, not for quorums"
    )
    said = [decided]
    if facts.least_share < HARDLY:
        missed = "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"
        said.append(f"the least heard worker brings {facts.least_share:.2f} of an even share of gradients{missed}")
    return said


def _recommended(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> str:
    """Describe the recommended quorum and its imbalance, compared with synchronous All-Reduce."""
    usual = [option for option in options if option.is_plain and option.steps_per_round == 1 and not option.late]
    base = best_of(usual or [all_reduce(job)])  # the limits may exclude it
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


def _on_request_reasons(chosen: CandidateSchedule, _options: Options, job: PlanRequest) -> list[str]:
    facts = chosen.facts
    assert facts is not None, "chosen is one of this kind"
    models = facts.memory_bytes / (job.hardware.model_bytes or 1)
    said = (
        f"its workers have no common rounds: {ms(chosen.step_seconds)} are the mean over the steps of all, on "
        f"links that all share; a worker keeps {models:.3g} models beside its parameters"
    )
    return [said]


def _on_request_cautions(_chosen: CandidateSchedule, _job: PlanRequest) -> list[str]:
    said = (
        "who averages with whom is decided while the job runs: its seconds, consensus distance and steps are of a "
        "run in virtual time, not proved"
    )
    return [said]


def _outer_reasons(chosen: CandidateSchedule, _options: Options, job: PlanRequest) -> list[str]:
    facts, model = chosen.facts, job.hardware.model_bytes or 1
    assert facts is not None, "chosen is one of this kind"
    sent = (
        f"the step that sends most sends {size(facts.peak)} out of a node, and a step {size(chosen.nic_bytes)} on "
        f"average; a worker keeps {facts.memory_bytes / model:.3g} models beside its parameters"
    )
    needed = (
        f"its steps are those of networks that were measured: {min(facts.by_task):.2f} to "
        f"{max(facts.by_task):.2f} times All-Reduce's"
    )
    if facts.rate != 1:
        needed += f", with {facts.rate:g} times the learning rate that was best for All-Reduce"
    return [sent, needed]


def _outer_cautions(_chosen: CandidateSchedule, _job: PlanRequest) -> list[str]:
    said = (
        "outer steps were measured on small networks with 16 workers, in runs of 200 to 1,000 steps, and may lose "
        "in shorter ones: tune the outer learning rate and momentum of the file on your job"
    )
    return [said]


class Words(NamedTuple):
    """The texts of a recommended option: reasons, gains and needs, and cautions."""

    reasons: Callable[[CandidateSchedule, Options, PlanRequest], list[str]]
    cautions: Callable[[CandidateSchedule, PlanRequest], list[str]]


ON_REQUEST = Words(_on_request_reasons, _on_request_cautions)
WORDS = {
    "outer": Words(_outer_reasons, _outer_cautions),
    "iteration_gap": Words(_gap_reasons, _gap_cautions),
    "partial": Words(_quorum_reasons, _quorum_cautions),
    "dynamic_groups": ON_REQUEST,
    "pairwise": ON_REQUEST,
    "server": ON_REQUEST,
}
"""Texts by `Facts.kind`."""


def not_reached(missed: Mapping[str, Sequence[str]], answer: Answer) -> list[str]:
    """Return a sentence on options not scored, with the total of each kind, and whether another run may differ."""
    count = sum(map(len, missed.values()))
    if not count and not answer.capped:
        return []
    kinds = ", ".join(f"{len(names)} of {what}" for what, names in missed.items() if names)
    left = f" with {count} schedule{'s' * (count != 1)} unscored ({kinds})" if count else ""
    differs = ", and another run may differ" if answer.capped else ""
    return [
        f"planning ended because {answer.ended}{left}{differs}; raise --{'time-limit' if answer.capped else 'effort'}"
    ]


def not_weighed(job: PlanRequest) -> list[str]:
    """Return the kinds that are not weighed by default, and the reasons; O(num_workers) where step times vary."""
    said, count = [], job.cluster.num_workers
    if job.cluster.is_regular and not holds_rules(job.cluster):
        said.append(
            f"no rules are searched for {job.cluster.workers_per_node} workers on a node, whose matrices would not fit "
            "into memory; the catalogue's rules are weighed as far as there is time"
        )
    if count > MAX_GRAPH_WORKERS and (kinds := _of_fewer(job)):
        way_out = "; --sync partial weighs quorums" if "quorums" in kinds else ""
        listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
        said.append(f"{listed} are weighed for at most {MAX_GRAPH_WORKERS} workers, not {count}{way_out}")
    if not is_open(job):
        return said
    slowdown = Slowdown.of(job)
    if slow := slowdown.slow:
        them = ", ".join(str(worker) for worker, _ in slow[:4]) + ", …" * (len(slow) > 4)
        said.append(
            f"two answers are yours to weigh: leave worker{'s' * (len(slow) > 1)} {them} out, or give a smaller batch "
            "(docs/how-to/slow-worker.md)"
        )
    what, most = "groups on request, pairs and servers are", MOST_ON_REQUEST
    if slowdown.is_even:
        said.append(
            f"{what} not weighed: no worker is slow and no step takes longer than others, which is what they answer"
        )
    elif count > most:
        said.append(f"{what} weighed for at most {most} workers, not {count}")
    elif not job.searches:
        said.append("groups on request and servers are weighed with --effort thorough")
    if (why := why_no_outer_steps(job)) and is_thin(job):
        said.append(f"outer steps (DiLoCo) are not weighed: {why}; --build diloco builds them")
    return said


def _of_fewer(job: PlanRequest) -> list[str]:
    """Return the kinds that this job would weigh with fewer workers."""
    if job.quorum:
        return []
    kinds = ["weighted graphs"]
    if not has_equal_speeds(job.cluster):
        kinds.append("unequal steps per round")
    others = ["neighbors that keep a gap"] * (job.gap is None and not job.tables) + ["quorums"] * job.is_open_to_quorums
    return kinds if not others or Slowdown.of(job).is_even else kinds + others
