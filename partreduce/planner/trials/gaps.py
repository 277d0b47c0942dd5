"""Neighbors that keep a gap: the graphs that would be best if all workers were equal, under what answers the slowdown.

Nothing says beforehand what is averaged where workers go on by themselves, so the reduces of a run are carried out on
vectors (`schedulers.simulator.replay`). Predicted steps are the steps model's for the replayed metrics, divided by how
far a step brings the mean; digits trained along the same reduces needed within 6 % of that under 11 of 12 settings in
serial order (benchmarks/results/steps_to_loss_gaps.json).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from partreduce.console import size
from partreduce.planner.competitors import MAX_GRAPH_WORKERS
from partreduce.planner.job import Data, PlanRequest
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import measure, pushed_by
from partreduce.planner.option import CandidateSchedule, Facts, LongerRun
from partreduce.planner.recommend import ms, permitted
from partreduce.planner.slowdown import Setting, Slowdown
from partreduce.planner.travel import timed
from partreduce.planner.trials.kit import PER_EVENT, Kind, Trial, Trials, best_of, calm, error_of, memory_bytes
from partreduce.planner.work import work_of
from partreduce.schedulers import registry
from partreduce.schedulers.simulator.replay import Replayed
from partreduce.topo.errors import PartreduceError
from partreduce.topo.metrics.base import Kind as MetricKind
from partreduce.topo.metrics.base import Metric, absent
from partreduce.topo.metrics.late_distance import late_distance_like
from partreduce.topo.metrics.outer_steps import largest_rate
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import SYNCHRONOUS, AllReduceAlgorithm, DelayedAveraging
from partreduce.topo.strategies.iteration_gap import IterationGap, UpdateOrder

GRAPHS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ring", {}),
    ("ring-based", {}),
    ("double-ring", {}),
    ("exponential", {}),
    ("clustered", {}),
    ("clustered", {"links": 2}),
    ("clustered", {"across": "complete"}),
)
"""Those of Hop's evaluation, one of degree log n, and graphs that know who shares a node."""
KEPT = 3
"""Graphs in an order, serial or parallel, that are run under all settings."""
RUN_AGAIN, SEEDS = 3, 3
"""Options that are run once more for longer, and seeds of that where step times vary."""
ROUNDS, LONG = 60, 150
"""Steps of a run. Queues on thin links fill slowly, so that a short run may be some percent too fast."""
STEADY_ROUNDS = 240
"""Of the first run that shows whether the consensus distance is steady."""
WARM_UP = 5
"""One part of so many of a run is left out of its seconds."""
NOTHING = "no worker is slow and no step takes longer than others, so there is nothing that a gap could answer"
TOLD = 0.02
"""A step that brings the mean less far by this part, or a part of steps skipped, is worth a sentence."""
FEW = 0.75
"""A smaller part of the workers, whose gradients would leave as much noise, is worth a caution."""
HARDLY = 0.5
"""Gradients that count less than this part of an even share hardly count."""
UNHEARD = 0.05
"""Gradients that count less than this part of an even share count next to nothing."""
USUAL_MOMENTUM = 0.9


ORDER_LABELS = {UpdateOrder.ADAPT_THEN_COMBINE: "serial", UpdateOrder.DPSGD: "parallel"}
"""What names of candidates say of the update order."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph under a setting: `base` is the option that it would be if all workers were equal."""

    base: CandidateSchedule
    setting: Setting
    schedule: Schedule
    memory_bytes: float

    @classmethod
    def of(cls, base: CandidateSchedule, setting: Setting, job: PlanRequest) -> Candidate | None:
        """None if the setting does not fit the graph."""
        try:
            strategy = replace(base.schedule.strategy, sync=setting.gap)
            schedule = replace(base.schedule, name=f"{base.schedule.name} gap: {setting.words}", strategy=strategy)
            return cls(base, setting, schedule, memory_bytes(strategy, job))
        except PartreduceError:
            return None

    @property
    def name(self) -> str:
        return f"{self.schedule.name}, {ORDER_LABELS[self.setting.gap.update_order]}"

    def trial(self, job: PlanRequest, num_rounds: int, num_seeds: int) -> Trial:
        """Its runs: a worker has three events in a step, and updates and tokens go along each edge."""
        return Trial(self.name, num_seeds * self._work(num_rounds), lambda: self._measured(job, num_rounds, num_seeds))

    def _work(self, num_rounds: int) -> float:
        edges = len(self.schedule.strategy.graphs[0]) * (1 + (self.setting.gap.max_ig is not None))
        return PER_EVENT * num_rounds * (3 * self.schedule.num_workers + edges)

    def _measured(self, job: PlanRequest, num_rounds: int, num_seeds: int) -> CandidateSchedule | None:
        try:
            runs = [_run(self.schedule, job, num_rounds, job.seed + seed) for seed in range(num_seeds)]
        except PartreduceError:
            return None
        option = _priced(self, runs, job)
        if self.schedule.is_mixing:  # its consensus distance is that of its matrices
            return option
        return replace(option, longer=LongerRun(STEADY_ROUNDS, self._work, partial(self._longer, job)))

    def _longer(self, job: PlanRequest, num_rounds: int) -> tuple[CandidateSchedule, tuple[float, float, float]] | None:
        try:
            run = _run(self.schedule, job, num_rounds, job.seed)
        except PartreduceError:
            return None
        return _priced(self, [run], job), run.distances


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds of a step, their standard error, and what the reduces did.

    `distances` are the consensus distances of its first quarter, its first half and the whole.
    """

    step_seconds: float
    error: float
    num_rounds: int
    did: Replayed
    distances: tuple[float, float, float]


class Gaps(Kind):
    """Hop's kind: a few graphs under the settings that answer the job's slowdowns."""

    word, name = "iteration_gap", "neighbors that keep a gap"

    def weighs(self, job: PlanRequest) -> bool:
        is_small = job.cluster.num_workers <= MAX_GRAPH_WORKERS and not job.quorum
        return is_small and (bool(job.gap) or (job.gap is None and not Slowdown.of(job).is_even))

    def options(self, trials: Trials) -> list[CandidateSchedule]:
        """See `Kind`; one is measured in any case where nothing else is asked for."""
        job = trials.job
        candidates = {one.name: one for one in _candidates(trials)}
        trials.try_all(
            [(name, one.trial(job, ROUNDS, 1)) for name, one in candidates.items()], in_any_case=bool(job.gap)
        )
        seeds = 1 if job.compute_times().is_fixed else SEEDS
        for name in trials.best_first()[:RUN_AGAIN]:
            trials.again(name, candidates[str(name)].trial(job, LONG, seeds))
        return list(trials.options.values())

    def reasons(self, chosen: CandidateSchedule, options: Sequence[CandidateSchedule], job: PlanRequest) -> list[str]:
        slowdown, facts = Slowdown.of(job), chosen.facts
        assert facts is not None, "chosen is one of this kind"
        models = facts.memory_bytes / (job.hardware.model_bytes or 1)
        memory = (
            f"its queues take at most {size(facts.memory_bytes)} of a worker's memory, {models:.3g} times the model"
        )
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

    def cautions(self, chosen: CandidateSchedule, job: PlanRequest) -> list[str]:
        facts, count = chosen.facts, job.cluster.num_workers
        assert facts is not None, "chosen is one of this kind"
        said = _momentum(chosen)
        if chosen.schedule.is_mixing:
            return said
        if job.data is not Data.SHUFFLED:
            said.append(
                "on data that differs between workers, neighbors that kept a gap needed up to 1.7 times the predicted "
                "steps (docs/gaps.md)"
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
                "the gradients of its least heard worker count "
                f"{max(0.0, facts.least_share):.2f} of an even share{missed}"
            )
        return said


def _candidates(trials: Trials) -> list[Candidate]:
    """All settings of the best graphs, as far as their queues may be as large; if none may, the smallest one."""
    job = trials.job
    kept: list[list[Candidate]] = []
    too_large: list[Candidate] = []
    for base, order in sorted(_bases(trials), key=lambda one: (one[0].time, one[0].name)):
        settings = trials.slowdown.settings(base.schedule.strategy.graphs[0], order)
        made = [one for setting in settings if (one := Candidate.of(base, setting, job)) is not None]
        fitting = [one for one in made if job.max_queues is None or one.memory_bytes <= job.max_queues]
        too_large += [one for one in made if one not in fitting]
        kept += [fitting] if fitting else []
        if len(kept) == KEPT:
            break
    smallest = [min(too_large, key=lambda one: one.memory_bytes)] if too_large and job.gap else []
    return [one for graph in kept for one in graph] or smallest


def _bases(trials: Trials) -> Iterator[tuple[CandidateSchedule, UpdateOrder]]:
    """The graphs in both orders, with their metrics and costs if all workers took the same time in all steps."""
    job, even = trials.job, calm(trials.job)
    for name, parameters in GRAPHS:
        try:
            entry = registry.entry(name)
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
            if not within_limits(schedule, job.limits) or not trials.pay(work_of(schedule, even, 2)):
                continue
            for order, sync in ((UpdateOrder.ADAPT_THEN_COMBINE, SYNCHRONOUS), (UpdateOrder.DPSGD, DelayedAveraging())):
                yield measure(timed(schedule, sync, 1), even, algorithm=AllReduceAlgorithm.RING), order
        except PartreduceError:
            continue  # a graph that does not fit this cluster, or whose metrics are out of reach, is no candidate


def _run(schedule: Schedule, job: PlanRequest, num_rounds: int, seed: int) -> Run:
    """One run in virtual time with its reduces carried out."""
    from partreduce.schedulers.simulator.case import Case
    from partreduce.schedulers.simulator.gaps import run_gaps
    from partreduce.schedulers.simulator.replay import Replay

    gap = schedule.strategy.sync
    assert isinstance(gap, IterationGap)
    replay = Replay(schedule.strategy.graphs[0], gap, seed=seed)
    case = Case(
        schedule,
        job.hardware,
        job.compute_times(),
        num_rounds,
        seed,
        model_bytes=None,
        algorithm=AllReduceAlgorithm.RING,
    )
    timeline, first = run_gaps(case, listeners=(replay,)), num_rounds // WARM_UP
    seconds, error = timeline.per_step(warm_up=first), error_of(timeline.finish.mean(axis=1), first)
    node_of, last = job.cluster.node_of(), min(replay.step)
    did = replay.replayed(node_of)
    quarter, half = (replay.replayed(node_of, last=last // part).consensus_distance for part in (4, 2))
    return Run(seconds, error, num_rounds, did, (quarter, half, did.consensus_distance))


def _priced(candidate: Candidate, runs: Sequence[Run], job: PlanRequest) -> CandidateSchedule:
    """The option as its runs were, in their median."""
    schedule, option = candidate.schedule, candidate.base
    steps = [run.step_seconds for run in runs]
    step = float(np.median(steps))
    # Of several runs what they differ by, of one what its parts differ by.
    spread = float(np.std(steps, ddof=1)) / len(steps) ** 0.5 if len(steps) > 1 else runs[0].error

    def mean(name: str) -> float:
        return float(np.mean([getattr(run.did, name) for run in runs]))

    noise, drift, contraction = option.consensus_distance, option.drift, option.contraction
    if not schedule.is_mixing:
        how = f"replayed: {len(runs)} run{'s' * (len(runs) > 1)} of {runs[0].num_rounds} steps"
        noise = Metric(mean("consensus_distance"), MetricKind.ESTIMATE, how)
        drift = Metric(mean("drift_node" if job.push == "node" else "drift_worker"), MetricKind.ESTIMATE, how)
        contraction = absent("which updates are averaged is decided while the job runs")
    progress, model = mean("progress"), job.steps_model
    shares = np.mean([run.did.shares for run in runs], axis=0) * schedule.num_workers  # (num_workers,)
    metrics = float(noise), pushed_by(drift, job)
    # A mean that gets less far in each step needs more steps; one that gets further has a larger learning rate, which
    # the job could have had anyway.
    late = late_distance_like(float(noise), 1, 1 - 1 / schedule.num_workers) if option.late else 0.0
    steps_ratio = model.steps_ratio(*metrics, late=late) / max(min(1.0, progress), 1e-9)
    communicating = 0.0 if option.late else option.communication
    return replace(
        option,
        name=candidate.name,
        schedule=schedule,
        step_seconds=step,
        step_error=spread / step if step else 0.0,
        waiting=max(0.0, step - job.compute_times().base - communicating),
        consensus_distance=noise,
        drift=drift,
        contraction=contraction,
        late_distance=late,
        steps_ratio=steps_ratio,
        model=model,
        extrapolated=model.extrapolates(*metrics),
        facts=Facts(
            kind=Gaps.word,
            words=candidate.setting.words,
            memory_bytes=candidate.memory_bytes,
            more=model.late_more(late) / (progress if 0 < progress < 1 else 1.0),
            progress=progress,
            gradients=mean("gradients") / schedule.num_workers,
            computed=mean("computed"),
            least_share=float(np.mean([run.did.shares.min() * schedule.num_workers for run in runs])),
            unheard=tuple(np.flatnonzero(shares < UNHEARD).tolist()),
        ),
    )


def _momentum(chosen: CandidateSchedule) -> list[str]:
    """In the serial order momentum can make what differs between workers grow at rates that All-Reduce bears."""
    gap = chosen.schedule.strategy.sync
    assert isinstance(gap, IterationGap), "options with facts of a gap keep one"
    borne = largest_rate(chosen.schedule.strategy.graphs[0], USUAL_MOMENTUM, parallel=gap.lag > 0)
    usual = 2 * (1 + USUAL_MOMENTUM)
    if borne > usual / 4:
        return []
    way_out = "" if gap.lag else ", or take the parallel order"
    said = (
        f"with momentum {USUAL_MOMENTUM:g} it bears a rate times curvature of {borne:.2f} only, where All-Reduce bears "
        f"{usual:.1f}: beyond that workers drift apart (docs/strategies.md); lower the rate or the momentum{way_out}"
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


def _gained(chosen: CandidateSchedule, options: Sequence[CandidateSchedule]) -> str:
    """Against the same graph and order without the setting."""
    gap, graph = chosen.schedule.strategy.sync, chosen.schedule.strategy.graphs
    assert isinstance(gap, IterationGap)
    plain = [
        o
        for o in options
        if o.gap and o is not chosen and o.schedule.strategy.sync == IterationGap(update_order=gap.update_order)
    ]
    same = [o for o in plain if o.schedule.strategy.graphs == graph]
    return "".join(f"; without that a step would take {ms(o.step_seconds)}" for o in same[:1])
