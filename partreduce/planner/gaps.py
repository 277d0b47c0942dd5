"""Gaps between neighbours as options: which graphs, under which settings, with what the protocol object does in them.

Nothing says beforehand how long steps take and what is averaged where workers go on by themselves. So a few candidates
are run in virtual time, and their reduces are carried out on vectors (`runtime.virtual_time.replay`): the graphs that
would be best if all workers were alike, under the settings that answer the job's slowdowns. Predicted steps are the
steps model's for the replayed figures, divided by how far a step brings the mean; digits trained along the same reduces
needed within 6 % of that under 11 of 12 settings in serial order (benchmarks/results/steps_to_loss_gaps.json).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from partreduce.planner.competitors import MAX_GRAPH_WORKERS
from partreduce.planner.limits import within_limits
from partreduce.planner.measuring import measure, pushed_by
from partreduce.planner.option import GapFacts, Option
from partreduce.planner.slowdown import Slowdown
from partreduce.planner.travel import timed
from partreduce.planner.work import payer, work_of
from partreduce.schedulers import registry
from partreduce.topo.errors import PartreduceError
from partreduce.topo.figures.base import Figure, Kind, absent
from partreduce.topo.strategies.axes import LOCKSTEP, Form, Late
from partreduce.topo.strategies.gap import Gap, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partreduce.planner.job import Job
    from partreduce.planner.slowdown import Setting
    from partreduce.runtime.virtual_time.replay import Replayed
    from partreduce.schedulers.synthesis.clock import Clock
    from partreduce.topo.schedule import Schedule

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
RUN_AGAIN = 3
"""Candidates that are run once more for longer, and with several seeds where step times vary."""
SEEDS = 3
ROUNDS, LONG = 60, 150
"""Steps of a run. Queues on thin links fill slowly, so that a short run may be some percent too fast."""
PARTS = 5
"""Of a run: the first is left out of its seconds, the others say how much these vary."""
PER_EVENT = 1.7e-5
"""Nominal seconds of a run for each event of a worker and each message; the replay of its reduces included."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds of a step, their standard error, and what the reduces did."""

    step_seconds: float
    error: float
    num_rounds: int
    did: Replayed


@dataclass(frozen=True, slots=True)
class Based:
    """A graph with an order, as it would be if all workers were alike: `time` is its seconds to a loss then."""

    option: Option
    order: Order

    @property
    def time(self) -> float:
        """See above; the graphs are tried in this order."""
        return self.option.time


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph under a setting, before it is run; `memory_bytes` are its queues at the busiest worker."""

    name: str
    based: Based
    words: str
    schedule: Schedule
    memory_bytes: float

    @classmethod
    def of(cls, based: Based, setting: Setting, job: Job) -> Candidate | None:
        """None if the setting does not fit the graph."""
        from partreduce.runtime.virtual_time.predict import ARRAYS

        plain = based.option.schedule
        try:
            strategy = replace(plain.strategy, when=setting.gap)
            schedule = replace(plain, name=f"{plain.name} gap: {setting.words}", strategy=strategy)
            arrays = ARRAYS[strategy.protocol](strategy, schedule.num_workers)
        except PartreduceError:
            return None
        name = f"{schedule.name}, {based.order}"
        return cls(name, based, setting.words, schedule, arrays * (job.hardware.model_bytes or 0))

    @property
    def work(self) -> float:
        """Nominal seconds of a short run."""
        return _work(self.schedule, ROUNDS)

    def measured(self, job: Job) -> Option | None:
        """The option after one short run; None if its workers wait for one another for ever."""
        try:
            run = _run(self.schedule, job, ROUNDS, job.seed)
        except PartreduceError:
            return None
        option = replace(self.based.option, name=self.name, schedule=self.schedule)
        return _with(option, [run], job, words=self.words, memory_bytes=self.memory_bytes)


def gap_options(job: Job, clock: Clock, until: float, left_out: Callable[[str], None]) -> list[Option]:
    """A few graphs under the settings that answer the job's slowdowns; none where it does not ask for gaps.

    The names of those that the time did not reach go to `left_out`.
    """
    slowdown = Slowdown.of(job)
    if (
        job.gap is False
        or job.quorum
        or (job.gap is None and slowdown.is_even)
        or job.cluster.num_workers > MAX_GRAPH_WORKERS
    ):
        return []
    pay = payer(clock, until)
    options: list[Option] = []
    for candidate in _candidates(job, slowdown, pay):
        # One is measured in any case where nothing else is asked for.
        if not pay(candidate.work) and (options or not job.gap):
            left_out(candidate.name)
        elif (option := candidate.measured(job)) is not None:
            options.append(option)
    return _again(options, job, pay)


def _candidates(job: Job, slowdown: Slowdown, pay: Callable[[float], bool]) -> list[Candidate]:
    """All settings of the best graphs, as far as their queues may be as large; if none may, the smallest one."""
    kept: list[list[Candidate]] = []
    too_large: list[Candidate] = []
    for based in sorted(_based(job, pay), key=lambda one: (one.time, one.option.name)):
        settings = slowdown.settings(based.option.schedule.strategy.graphs[0], based.order)
        made = [one for setting in settings if (one := Candidate.of(based, setting, job)) is not None]
        fitting = [one for one in made if job.max_queues is None or one.memory_bytes <= job.max_queues]
        too_large += [one for one in made if one not in fitting]
        kept += [fitting] if fitting else []
        if len(kept) == KEPT:
            break
    smallest = [min(too_large, key=lambda one: one.memory_bytes)] if too_large and job.gap else []
    return [one for graph in kept for one in graph] or smallest


def _again(options: list[Option], job: Job, pay: Callable[[float], bool]) -> list[Option]:
    """The same with the best ones as they are in the median of longer runs."""
    seeds = 1 if job.compute_times().is_fixed else SEEDS
    for option in sorted(options, key=lambda one: (one.time, one.name))[:RUN_AGAIN]:
        if pay(seeds * _work(option.schedule, LONG)):
            runs, facts = [_run(option.schedule, job, LONG, job.seed + seed) for seed in range(seeds)], option.gap
            assert facts is not None
            again = _with(option, runs, job, words=facts.words, memory_bytes=facts.memory_bytes)
            options[next(i for i, one in enumerate(options) if one is option)] = again
    return options


def _based(job: Job, pay: Callable[[float], bool]) -> Iterator[Based]:
    """The graphs in both orders, with their figures and costs if all workers took the same time in all steps."""
    hardware = replace(job.hardware, slowdown=(), jitter=0.0)
    calm = replace(job, cluster=replace(job.cluster, hardware=hardware), disturbance=None, drift_correction=False)
    for name, parameters in GRAPHS:
        try:
            entry = registry.entry(name)
            if entry.why_not(job.cluster, **parameters):
                continue
            schedule = entry.build(job.cluster, **parameters)
            if not within_limits(schedule, job.limits) or not pay(work_of(schedule, calm, 2)):
                continue
            for order, when in ((Order.SERIAL, LOCKSTEP), (Order.PARALLEL, Late())):
                yield Based(measure(timed(schedule, when, 1), calm, form=Form.RING), order)
        except PartreduceError:
            continue  # a graph that does not fit this cluster, or whose figures are out of reach, is no candidate


def _work(schedule: Schedule, num_rounds: int) -> float:
    """Nominal seconds of a run: a worker's three events in a step, and updates and tokens along each edge."""
    gap, edges = schedule.strategy.when, len(schedule.strategy.graphs[0])
    has_tokens = isinstance(gap, Gap) and gap.max_ig is not None
    return PER_EVENT * num_rounds * (3 * schedule.num_workers + edges * (1 + has_tokens))


def _with(option: Option, runs: list[Run], job: Job, *, words: str, memory_bytes: float) -> Option:
    """The option as its runs were, in their median; `words` and `memory_bytes` are those of `Candidate`."""
    schedule, did = option.schedule, [run.did for run in runs]
    steps = [run.step_seconds for run in runs]
    step = float(np.median(steps))
    # Of several runs what they differ by, of one what its parts differ by.
    spread = float(np.std(steps, ddof=1)) / len(steps) ** 0.5 if len(steps) > 1 else runs[0].error
    noise, drift, contraction = option.consensus_distance, option.drift, option.contraction
    if not schedule.is_mixing:
        how = f"replayed: {len(runs)} run{'s' * (len(runs) > 1)} of {runs[0].num_rounds} steps"
        drifts = [one.drift_node if job.push == "node" else one.drift_worker for one in did]
        noise = Figure(float(np.mean([one.consensus_distance for one in did])), Kind.ESTIMATE, how)
        drift = Figure(float(np.mean(drifts)), Kind.ESTIMATE, how)
        contraction = absent("which updates are averaged is decided while the job runs")
    progress = float(np.mean([one.progress for one in did]))
    model = job.steps_model
    figures = float(noise), pushed_by(drift, job)
    # A mean that gets less far in each step needs more steps; one that gets further has a larger learning rate, which
    # the job could have had anyway.
    steps_ratio = model.steps_ratio(*figures, late=option.late) / max(min(1.0, progress), 1e-9)
    communicating = 0.0 if option.late else option.communication
    return replace(
        option,
        step_seconds=step,
        step_error=spread / step if step else 0.0,
        waiting=max(0.0, step - job.compute_times().base - communicating),
        consensus_distance=noise,
        drift=drift,
        contraction=contraction,
        steps_ratio=steps_ratio,
        model=model,
        extrapolated=model.extrapolates(*figures),
        corrected=False,
        gap=GapFacts(
            words=words,
            memory_bytes=memory_bytes,
            progress=progress,
            gradients=float(np.mean([one.gradients for one in did])) / schedule.num_workers,
            computed=float(np.mean([one.computed for one in did])),
            least_share=float(np.mean([one.shares.min() * schedule.num_workers for one in did])),
        ),
    )


def _run(schedule: Schedule, job: Job, num_rounds: int, seed: int) -> Run:
    """One run in virtual time with its reduces carried out.

    Raises:
        PartreduceError: the setting does not fit the graph, or workers wait for one another for ever.
    """
    from partreduce.runtime.virtual_time.case import Case
    from partreduce.runtime.virtual_time.gaps import run_gaps
    from partreduce.runtime.virtual_time.replay import Replay

    gap = schedule.strategy.when
    assert isinstance(gap, Gap)
    replay = Replay(schedule.strategy.graphs[0], gap, seed=seed)
    case = Case(schedule, job.hardware, job.compute_times(), num_rounds, seed, model_bytes=None, form=Form.RING)
    timeline = run_gaps(case, listeners=(replay,))
    part = num_rounds // PARTS
    ends = timeline.finish[part - 1 :: part].mean(axis=1)  # of each part
    parts = np.diff(ends) / part  # seconds of a step in each part but the first
    return Run(
        step_seconds=timeline.per_step(warm_up=part),
        error=float(parts.std(ddof=1)) / len(parts) ** 0.5,
        num_rounds=num_rounds,
        did=replay.replayed(job.cluster.node_of()),
    )
