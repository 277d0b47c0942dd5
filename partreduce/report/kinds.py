"""Explain the recommended kind of strategy: reasons, needs, and the costs of the best candidates of other kinds.

The sentences also name the kinds that were not considered, because of time, the number of workers, or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from partreduce.console import size
from partreduce.planner.candidates import (
    KINDS,
    MOST_ON_REQUEST,
    Slowdown,
    all_reduce,
    is_thin,
    why_no_outer_steps,
)
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.measuring import MAX_GRAPH_WORKERS
from partreduce.planner.option import CandidateSchedule, Facts
from partreduce.planner.plan import Answer
from partreduce.planner.recommend import Options, allowed_options, decisive_time, gain, ms
from partreduce.planner.trials import best_of
from partreduce.schedulers.synthesis.cluster_shape import has_equal_speeds, holds_rules
from partreduce.topo.metrics.stability import largest_rate
from partreduce.topo.strategies.iteration_gap import IterationGap

NOTHING = "no worker is slow and no step takes longer than others, so there is nothing that a gap could answer"
MATERIAL = 0.02
"""The smallest reported fraction of a step's progress that is lost, and of steps that are skipped."""
FEW, HARDLY = 0.75, 0.5
"""Fractions below which a caution is printed.

FEW: of all workers, those whose gradients alone would leave as much noise in the mean model. HARDLY: of an even weight,
the weight of the gradients of the worker that counts least.
"""
USUAL_MOMENTUM = 0.9
OUTER_CAUTION = (
    "outer steps were measured on small networks with 16 workers, in runs of 200 to 1,000 steps, and may lose "
    "in shorter ones: tune the outer learning rate and momentum of the file on your job"
)
ON_REQUEST_CAUTION = (
    "which workers average together is decided while the job runs: its seconds, consensus distance and steps are of a "
    "run in virtual time, not proved"
)
QUORUM_CAUTION = (
    "which workers take part in a round is decided while the job runs: its seconds, ages and steps are of a run in "
    "virtual time; the price of late gradients was measured for pipelines, where all are equally late, not for quorums"
)


def reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return the reasons for the recommended kind of strategy, and the costs of each other kind's best candidate."""
    lines, allowed = [], allowed_options(options, job)
    for word in KINDS:
        able = [one for one in allowed if one.facts is not None and one.facts.kind == word]
        if chosen.facts is not None and chosen.facts.kind == word:
            lines += WORDS[word].reasons(chosen, options, job)
        elif able and chosen.time > 0:
            lines.append(_not_taken(best_of(able), chosen, job))
    return [line for line in lines if line]


def cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    """Return the cautions about the kind of a recommendation with `facts`, one sentence each; none for other kinds."""
    return [] if chosen.facts is None else WORDS[chosen.facts.kind].cautions(chosen, job)


def _facts(chosen: CandidateSchedule) -> Facts:
    assert chosen.facts is not None, "chosen is one of this kind"
    return chosen.facts


def _models(facts: Facts, job: PlanRequest) -> str:
    return f"{facts.memory_bytes / (job.hardware.model_bytes or 1):.3g}"


def _not_taken(best: CandidateSchedule, chosen: CandidateSchedule, job: PlanRequest) -> str:
    """Return a sentence on how much longer `best`, the best candidate of another kind, takes; empty if it does not.

    For a quorum (a round starts when enough workers have arrived) the sentence always states the predicted speedup.
    """
    if best.quorum:
        against, is_dear = gain(best, chosen, job.data), decisive_time(best, job) > decisive_time(chosen, job)
        pays = "it does not pay if delay costs as much as it may" if is_dear else "what was taken is simpler"
        pays = "it does not pay" if against.ratio <= 1 else pays
        return f"a quorum is predicted to be {against} as fast at best ({best.quorum.words}): {pays}"
    if not best.time > chosen.time:
        return ""
    return (
        f"{KINDS[_facts(best).kind].name} are predicted to take {best.time / chosen.time:.2f} times as long in their "
        f"best setting ({best.name}: {ms(best.step_seconds)} per step, {best.steps_ratio:.2f} times All-Reduce's steps)"
    )


def _gap_reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    slowdown, facts, count = Slowdown.of(job), _facts(chosen), job.cluster.num_workers
    memory = (
        f"its queues take at most {size(facts.memory_bytes)} of a worker's memory, {_models(facts, job)} times the "
        "model"
    )
    if slowdown.is_even:
        return [f"{NOTHING}; without --sync iteration_gap other kinds are weighed, too", memory]
    lines = [f"{_answers(chosen, slowdown)}{_without(chosen, options)}"]
    if without_share := facts.without_share:
        s, contribute, them = ("s", "contribute", "them") if len(without_share) > 1 else ("", "contributes", "it")
        lines.insert(
            0,
            f"worker{s} {', '.join(map(str, without_share))} {contribute} nothing: this is training with "
            f"{count - len(without_share)} workers, which a cluster without {them} could do as well",
        )
    if facts.progress < 1 - MATERIAL:
        lines.append(
            f"some of what it averages is old, so that a step brings the mean {facts.progress:.2f} times as far as "
            "in synchronous rounds; that is in its steps"
        )
    if facts.computed < 1 - MATERIAL:
        lines.append(
            f"{1 - facts.computed:.0%} of all steps are skipped, and no gradient is computed in them; a script's "
            "loop has to skip them, too: for batch in optimizer.batches(loader)"
        )
    able = [option for option in allowed_options(options, replace(job, gap=None)) if not option.gap]
    if job.gap and able and 0 < (best := best_of(able)).time < chosen.time:
        memory += (
            f"; {best.name} is predicted to take {best.time / chosen.time:.2f} times as long "
            f"({ms(best.step_seconds)} per step) and may be recommended without --sync iteration_gap"
        )
    return [*lines, memory]


def _gap_cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    facts, lines = _facts(chosen), [line for line in [_momentum(chosen)] if line]
    if chosen.schedule.is_mixing:
        return lines
    if job.data is not Data.SHUFFLED:
        lines.append(
            "on data that differs between workers, neighbors that kept a gap needed up to 1.7 times the predicted "
            "steps (docs/strategies/iteration-gap.md)"
        )
    lines.append(
        "which updates are averaged is decided while the job runs: its consensus distance, drift and steps are "
        "measured in virtual time, not proved, and it does not preserve the mean"
    )
    if facts.progress > 1 + MATERIAL:
        lines.append(
            "what is newer than one's own step is averaged, too, so that a step brings the mean "
            f"{facts.progress:.2f} times as far as synchronous rounds do, as a larger learning rate would: that is "
            "not counted as a gain, and a rate near its limit has to be lowered as much"
        )
    if facts.gradients < FEW:
        lines.append(
            f"some workers' updates count more than others': its mean has the noise of "
            f"{facts.gradients * job.cluster.num_workers:.0f} workers' gradients, not of {job.cluster.num_workers}"
        )
    if facts.least_share < HARDLY and Slowdown.of(job).slow:
        lines.append(
            f"the gradients of the worker that contributes least count {max(0.0, facts.least_share):.2f} of an "
            f"even share{_unseen(job)}"
        )
    return lines


def _unseen(job: PlanRequest) -> str:
    return "" if job.data is Data.SHUFFLED else ", and that is the only one who sees some of the data"


def _gap(option: CandidateSchedule) -> IterationGap:
    gap = option.schedule.strategy.sync
    assert isinstance(gap, IterationGap), "options with facts of a gap keep one"
    return gap


def _momentum(chosen: CandidateSchedule) -> str:
    """Return a sentence if momentum makes workers drift apart at learning rates that All-Reduce allows; else ""."""
    gap, usual = _gap(chosen), 2 * (1 + USUAL_MOMENTUM)
    most = largest_rate(chosen.schedule.strategy.graphs[0], USUAL_MOMENTUM, parallel=gap.lag > 0)
    if most > usual / 4:
        return ""
    return (
        f"with momentum {USUAL_MOMENTUM:g} it is stable up to a rate times curvature of {most:.2f} only, All-Reduce up "
        f"to {usual:.1f}: beyond that workers drift apart (docs/strategies/); lower the rate or the momentum"
        f"{'' if gap.lag else ', or take the parallel order'}"
    )


def _answers(chosen: CandidateSchedule, slowdown: Slowdown) -> str:
    gap, causes = _gap(chosen), []
    if slowdown.has_spikes:
        causes.append(f"steps that take up to {slowdown.spike:.3g} times as long now and then")
    if slowdown.slow:
        worker, takes = _slowest(slowdown)
        causes.append(f"{worker}, always {takes}")
    means = []
    if gap.skip is not None:
        means.append(f"a worker that is left behind skips up to {gap.skip.limit} steps at once")
    if gap.has_backup:
        means.append("neighbors do not wait for every update")
    if gap.staleness:
        means.append(f"updates up to {gap.staleness} steps old serve")
    return f"its gap answers {' and '.join(causes)}: {', '.join(means) or 'a worker waits for its neighbors only'}"


def _slowest(slowdown: Slowdown) -> tuple[str, str]:
    """Return phrases: the slowest worker, and how long it takes, with the number of other slow workers."""
    worker, factor = max(slowdown.slow, key=lambda one: one[1])
    more = f" (and {len(slowdown.slow) - 1} more)" if len(slowdown.slow) > 1 else ""
    return f"worker {worker}", f"{factor:.3g} times as long{more}"


def slow_workers(slowdown: Slowdown) -> str:
    """Return the slow workers as a phrase, such as "worker 3" or "workers 3, 5"; more than four end with "…"."""
    them = ", ".join(str(worker) for worker, _ in slowdown.slow[:4])
    return f"worker{'s' * (len(slowdown.slow) > 1)} {them}{', …' * (len(slowdown.slow) > 4)}"


def _without(chosen: CandidateSchedule, options: Options) -> str:
    """Return a clause: the step time of the same graph with a plain iteration gap (no staleness, backups, skips).

    The clause is empty if `options` have no other candidate with this graph and a plain gap.
    """
    plain, graph = IterationGap(update_order=_gap(chosen).update_order), chosen.schedule.strategy.graphs
    for one in options:
        strategy = one.schedule.strategy
        if one.gap and one is not chosen and strategy.sync == plain and strategy.graphs == graph:
            return f"; without that a step would take {ms(one.step_seconds)}"
    return ""


def _quorum_reasons(chosen: CandidateSchedule, options: Options, job: PlanRequest) -> list[str]:
    """Return sentences on a quorum (rounds that do not wait for all workers).

    They name the unequal speeds that suggest it, its gain over synchronous All-Reduce, and its memory.
    """
    facts, slowdown, found = _facts(chosen), Slowdown.of(job), []
    every = [option for option in options if option.is_every_step]
    ratio = gain(chosen, best_of(every or [all_reduce(job)]), job.data)  # the limits may exclude All-Reduce
    if slowdown.slow:
        worker, takes = _slowest(slowdown)
        found.append(f"{worker} always takes {takes}")
    if slowdown.has_spikes:
        found.append(f"some steps take up to {slowdown.spike:.3g} times as long")
    imbalance = " and ".join(found).capitalize() or "No worker is slow and no step takes much longer than others"
    if ratio.ratio <= 1 or slowdown.is_even:
        verdict = (
            f"recommended: All-Reduce without a quorum. {imbalance}; {facts.words} is predicted to be {ratio} as fast, "
            "late gradients counted"
        )
    else:
        sure = "" if ratio.low > 1 else ", which the prediction cannot tell from All-Reduce"
        verdict = (
            f"recommended: {facts.words} with a queue of {facts.bound}. {imbalance}; it is predicted to reach a loss "
            f"{ratio} as fast as All-Reduce in every step{sure}"
        )
    brings = (
        f"a step of it is a round: {facts.active:.3g} of {job.cluster.num_workers} workers are in one on average, "
        f"{facts.gradients:.3g} gradients, {facts.gradients_per_second:.4g} a second; they are {facts.age:.2g} "
        f"rounds late on average, which is {facts.delay:.2g} of All-Reduce's steps, and never more than {facts.bound}"
    )
    holds = f"it keeps at most {_models(facts, job)} times the model in addition to the parameters"
    return [verdict, brings, f"{holds}, so that results may wait"]


def _quorum_cautions(chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
    share = _facts(chosen).least_share
    if share >= HARDLY:
        return [QUORUM_CAUTION]
    return [
        QUORUM_CAUTION,
        f"the worker that contributes least brings {share:.2f} of an even share of gradients{_unseen(job)}",
    ]


def _on_request_reasons(chosen: CandidateSchedule, _options: Options, job: PlanRequest) -> list[str]:
    rounds = f"its workers have no common rounds: {ms(chosen.step_seconds)} are the mean over the steps of all"
    keeps = f"a worker keeps {_models(_facts(chosen), job)} models in addition to its parameters"
    return [f"{rounds}, on links that all share; {keeps}"]


def _outer_reasons(chosen: CandidateSchedule, _options: Options, job: PlanRequest) -> list[str]:
    facts = _facts(chosen)
    sent = f"the step that sends most sends {size(facts.peak)} out of a node, and a step {size(chosen.nic_bytes)}"
    keeps = f"a worker keeps {_models(facts, job)} models in addition to its parameters"
    ratios = f"{min(facts.by_task):.2f} to {max(facts.by_task):.2f} times All-Reduce's"
    rate = f", with {facts.rate:g} times the learning rate that was best for All-Reduce" if facts.rate != 1 else ""
    return [f"{sent} on average; {keeps}", f"its steps are those of networks that were measured: {ratios}{rate}"]


class Words(NamedTuple):
    """The functions that return the sentences about a recommended kind: its reasons, and its cautions."""

    reasons: Callable[[CandidateSchedule, Options, PlanRequest], list[str]]
    cautions: Callable[[CandidateSchedule, PlanRequest], list[str]]


WORDS = {
    "outer": Words(_outer_reasons, lambda *_: [OUTER_CAUTION]),
    "iteration_gap": Words(_gap_reasons, _gap_cautions),
    "partial": Words(_quorum_reasons, _quorum_cautions),
    **dict.fromkeys(
        ("dynamic_groups", "pairwise", "server"), Words(_on_request_reasons, lambda *_: [ON_REQUEST_CAUTION])
    ),
}
"""The functions for each `Facts.kind`."""


def not_reached(missed: Mapping[str, Sequence[str]], answer: Answer) -> list[str]:
    """Return a sentence on the candidates that planning did not reach in time; none if it reached all.

    `missed` lists their names by kind; `answer` says why planning ended.
    """
    count = sum(map(len, missed.values()))
    if not count and not answer.capped:
        return []
    kinds = ", ".join(f"{len(names)} of {what}" for what, names in missed.items() if names)
    left = f" with {count} schedule{'s' * (count != 1)} unscored ({kinds})" if count else ""
    differs, option = (", and another run may differ", "time-limit") if answer.capped else ("", "effort")
    return [f"planning ended because {answer.ended}{left}{differs}; raise --{option}"]


def not_weighed(job: PlanRequest) -> list[str]:
    """Return sentences on the kinds that were not considered, and why. O(num_workers) if step times vary."""
    lines, count = [], job.cluster.num_workers
    if job.cluster.is_regular and not holds_rules(job.cluster):
        lines.append(
            f"no rules are searched for {job.cluster.workers_per_node} workers on a node, whose matrices would not fit "
            "into memory; the catalogue's rules are weighed as far as there is time"
        )
    if count > MAX_GRAPH_WORKERS and (kinds := _of_fewer(job)):
        way_out = "; --sync partial weighs quorums" if "quorums" in kinds else ""
        listed = " and ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
        lines.append(f"{listed} are weighed for at most {MAX_GRAPH_WORKERS} workers, not {count}{way_out}")
    if not job.is_open:
        return lines
    slowdown = Slowdown.of(job)
    if slowdown.slow:
        lines.append(
            f"two answers are yours to weigh: leave {slow_workers(slowdown)} out, or give a smaller batch "
            "(docs/how-to/slow-worker.md)"
        )
    what = "groups on request, pairs and servers are"
    if slowdown.is_even:
        lines.append(
            f"{what} not weighed: no worker is slow and no step takes longer than others, which is what they answer"
        )
    elif count > MOST_ON_REQUEST:
        lines.append(f"{what} weighed for at most {MOST_ON_REQUEST} workers, not {count}")
    elif not job.searches:
        lines.append("groups on request and servers are weighed with --effort thorough")
    if (why := why_no_outer_steps(job)) and is_thin(job):
        lines.append(f"outer steps (DiLoCo) are not weighed: {why}; --build diloco builds them")
    return lines


def _of_fewer(job: PlanRequest) -> list[str]:
    """Return the kinds that would be considered for this job if it had fewer workers."""
    if job.quorum:
        return []
    kinds = ["weighted graphs"] + ["unequal steps per round"] * (not has_equal_speeds(job.cluster))
    others = ["neighbors that keep a gap"] * (job.gap is None and not job.tables) + ["quorums"] * (
        job.is_open and job.quorum is None
    )
    return kinds if not others or Slowdown.of(job).is_even else kinds + others
