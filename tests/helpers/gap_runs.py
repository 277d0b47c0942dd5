"""Random runs with an iteration gap: schedules, the worker's part, and a replay of the recorded events."""

import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from benchmarks.explore.hop import exact_bounds
from helpers.training import wrap_quadratic
from partreduce import Cluster, Schedule
from partreduce.errors import ScheduleError
from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.hop import ENTERING, Ack, Advance, Reduce, SendUpdate, Token, Update, hop_of
from partreduce.strategies import EdgeWeighting, IterationGap, NeighborAveraging, Round, SkipPolicy, UpdateOrder

WIDTH = 3


def dyadic_round(n, edges):
    """Return a round with weight 1/8 on every edge (at most 7 in-neighbors); averages of dyadic numbers are exact."""
    return Round.from_edges(n, [(u, v, Fraction(1, 8)) for u, v in edges])


def ring_edges(n, *, both=True):
    forward = [(v, (v + 1) % n) for v in range(n)]
    return sorted({*forward, *((v, u) for u, v in forward)} if both else set(forward))


def plan_of(n, edges, gap, *, steps_per_round=1, name="gap"):
    return Schedule(
        name,
        Cluster.regular(1, n),
        NeighborAveraging(rounds=(dyadic_round(n, edges),), sync=gap, steps_per_round=steps_per_round),
    )


@dataclass(frozen=True)
class GapCase:
    schedule: Schedule
    rounds: int
    start: np.ndarray  # (n, WIDTH)
    push: np.ndarray  # (n, rounds, WIDTH): what step k adds
    delays: dict  # (worker, number of the call) -> seconds before that step; inf: until it may skip
    jitter: float
    uneven: tuple  # rounds of data of each worker
    meets: int = -1  # after so many rounds all look at the mean model

    @property
    def gap(self):
        return self.schedule.strategy.sync


def random_edges(rng, n):
    if rng.random() < 0.5:
        edges = set(ring_edges(n, both=True))
        for _ in range(rng.randint(0, n)):
            u, v = rng.sample(range(n), 2)
            edges |= {(u, v), (v, u)}
    else:
        edges = set(ring_edges(n, both=False))
        for _ in range(rng.randint(0, n)):
            edges.add(tuple(rng.sample(range(n), 2)))
    return sorted(edges)


def random_gap(rng, n, edges):
    """Return a random iteration gap that the schedule accepts; all kinds are about equally frequent."""
    sources = Counter(v for _, v in edges)
    kind = rng.choice(["standard", "notify_ack", "staleness", "backup", "both", "skip"])
    while True:
        gap = {"max_ig": rng.choice([None, 1, 2, 4]), "update_order": rng.choice(list(UpdateOrder))}
        gap["weights"] = rng.choice([EdgeWeighting.GRAPH, EdgeWeighting.UNIFORM])
        gap["notify_ack"] = kind == "notify_ack"
        if kind in ("staleness", "both") or (kind == "skip" and rng.random() < 0.5):
            gap["staleness"] = rng.choice([1, 2, 5])
            gap["weights"] = rng.choice(list(EdgeWeighting))
        if kind in ("backup", "both") or (kind == "skip" and (rng.random() < 0.5 or "staleness" not in gap)):
            gap["backup"] = rng.choice([1, tuple(rng.randint(0, sources[v]) for v in range(n))])
        if kind == "skip":
            trigger = rng.choice([2, 2, 3])
            gap["skip"] = SkipPolicy(limit=rng.choice([trigger, 10]), trigger=trigger, behind=rng.choice([2, 2, 4]))
        try:
            return plan_of(n, edges, IterationGap(**gap))
        except ScheduleError:
            continue


def make_gap_case(seed, *, uneven=False):
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    edges = random_edges(rng, n)
    schedule = replace(random_gap(rng, n, edges), name=f"gap {seed}")
    rounds = rng.randint(3, 9)
    numbers = np.random.default_rng(seed)
    delays = {}
    slow = rng.randrange(n) if rng.random() < 0.5 else None
    paused = rng.randrange(n) if rng.random() < 0.5 else None
    for step in range(rounds):
        if slow is not None:
            delays[slow, step] = 0.004
    if paused is not None:
        delays[paused, rng.randrange(rounds)] = 0.03
    return GapCase(
        schedule,
        rounds,
        numbers.integers(-8, 9, (n, WIDTH)) / 4.0,
        numbers.integers(-8, 9, (n, rounds, WIDTH)) / 4.0,
        delays,
        rng.choice([0.0, 0.001]),
        tuple(rng.randint(0, rounds) if uneven else rounds for _ in range(n)),
        rng.randrange(rounds) if rng.random() < 0.3 and not uneven else -1,
    )


def gap_problems(case, results):
    """Return sentences on workers that were further apart than the proved bound when they entered steps."""
    machine = hop_of(case.schedule.strategy.rounds[0], case.schedule.strategy.sync)
    bounds = exact_bounds(machine.graph, case.gap)
    steps, problems = [0] * machine.num_processes, []
    for v, event, _ in in_order(results):
        if event.kind != "entered":
            continue
        steps[v] = step = event.step
        for u, other in enumerate(steps):
            bound = bounds[v][u]
            if bound is not None and step - other > bound:
                problems.append(f"worker {v} in {step}, worker {u} in {other}: bound {bound}")
    return problems


def until_left_behind(runner):
    """Wait until the worker will skip at the end of its step; updates may arrive later than the tokens for it."""
    machine, rank, deadline = runner.driver.machine, runner.driver.rank, time.monotonic() + 60
    while not any(by.by > 1 for by in machine.ready(rank, replace(runner.driver.state, stage=ENTERING))):
        assert time.monotonic() < deadline, "the others may leave it behind, and do not"
        time.sleep(0.002)


def run_gap_case(case, world):
    """Run one worker; return its parameters after the last round, its log, and more, by name."""
    rank, rng = world.rank, random.Random(f"{case.schedule.name} {world.rank}")
    model, optimizer = wrap_quadratic(world, case.schedule, case.start[rank])
    optimizer.runner.log.is_on = True
    until = optimizer.runner._until

    def late(*arguments, **options):
        """Wait, then sleep a moment, which must not change any result."""
        until(*arguments, **options)
        time.sleep(case.jitter * rng.random())

    optimizer.runner._until = late
    calls, means = [], None
    with optimizer.join():
        number = 0
        while optimizer.round < case.uneven[rank]:
            round_ = optimizer.round
            if (delay := case.delays.get((rank, number), 0.0)) == np.inf:
                until_left_behind(optimizer.runner)
            else:
                time.sleep(delay + case.jitter * rng.random())
            model.set_gradient(0.0, case.push[rank, round_])
            optimizer.step()
            calls.append(round_)
            if optimizer.round == case.meets:  # no worker skips past it
                with optimizer.mean_model():
                    means = model.values().numpy().copy()
            number += 1
    values = model.values().numpy().copy()
    ended = optimizer.round
    log = optimizer.runner.log
    optimizer.finish()
    return {"values": values, "ended": ended, "events": list(log.events), "log": log, "calls": calls, "means": means}


def in_order(results):
    """Yield (worker, event, the worker's next event) for all workers' events in order of time."""
    listed = [(event.seconds, v, i) for v, result in enumerate(results) for i, event in enumerate(result["events"])]
    for _, v, i in sorted(listed):
        events = results[v]["events"]
        yield v, events[i], events[i + 1] if i + 1 < len(events) else None


class Replay:
    """A new protocol machine that follows all workers' recorded events, and lists those that it does not allow."""

    def __init__(self, schedule):
        self.machine = hop_of(schedule.strategy.rounds[0], schedule.strategy.sync)
        self.states = [self.machine.start(v)[0] for v in range(self.machine.num_processes)]
        self.transit = Counter()  # (from, to, what) -> sent and not received; tokens are counted one by one
        self.begun = set()
        self.problems = []

    def carry_out(self, v, event):
        self.states[v], actions = self.machine.step(v, self.states[v], event)
        for action in actions:
            if isinstance(action, Send):
                what, count = self.counted(action.message)
                self.transit[v, action.to, what] += count
        return [action.what for action in actions if isinstance(action, Note)]

    @staticmethod
    def counted(message):
        return (Token, message.count) if isinstance(message, Token) else (message, 1)

    def receive(self, v, source, message):
        what, count = self.counted(message)
        if self.transit[source, v, what] < count:
            self.problems.append(f"worker {v} received {message} from {source}, which was not sent")
        self.transit[source, v, what] -= count
        self.carry_out(v, Received(source, message))

    def raised(self, v, event, wanted):
        """Apply an event of the worker itself; `wanted` must be among its notes unless it is None."""
        if event not in self.machine.ready(v, self.states[v]):
            self.problems.append(f"worker {v}: {event} is not allowed in {self.states[v]}")
        elif wanted not in (notes := [None, *self.carry_out(v, event)]):
            self.problems.append(f"worker {v}: {wanted} is recorded, the protocol says {notes}")

    def follow(self, v, event, following):
        match event.kind:
            case "update":
                self.receive(v, event.source, Update(event.step))
            case "tokens":
                self.receive(v, event.source, Token(event.by))
            case "ack":
                self.receive(v, event.source, Ack())
            case "sent" if event.step != self.states[v].step:
                self.problems.append(f"worker {v}: sent {event.step} in {self.states[v]}")
            case "sent":
                self.raised(v, SendUpdate(), None)
            case "reduced":
                self.raised(v, Reduce(), ("reduced", event.step, event.used))
            case "renewed":
                self.raised(v, Advance(following.by), ("renewed", event.step, event.used))
            case "entered" if v not in self.begun:
                self.begun.add(v)
            case "entered" if event.by == 1:
                self.raised(v, Advance(), ("entered", event.step))


def replay(case, results):
    """Return sentences on recorded events that a new protocol machine does not allow."""
    protocol = Replay(case.schedule)
    for v, event, following in in_order(results):
        protocol.follow(v, event, following)
    return protocol.problems


def replayed_values(case, results):
    """Return all workers' parameters, computed in NumPy from the recorded sets of updates; shape (n, WIDTH)."""
    gap, graph = case.gap, case.schedule.strategy.rounds[0]
    n = graph.num_workers
    weight = {(s, t): float(w) for s, t, w in graph.edges()}
    x = case.start.copy()
    sent = {}  # (worker, step) -> array
    begun = x.copy()
    own = [0] * n
    for v, event, _ in in_order(results):
        if event.kind == "entered":
            begun[v] = x[v]
        if event.kind == "sent":
            has_data = event.step in results[v]["calls"]
            u = case.push[v, event.step] if has_data else 0.0
            if gap.update_order is UpdateOrder.ADAPT_THEN_COMBINE:
                x[v] = x[v] + u
            sent[v, event.step] = x[v].copy()
        if event.kind in ("reduced", "renewed"):
            k = event.step
            late = event.kind == "reduced" and gap.update_order is UpdateOrder.DPSGD
            base = begun[v] if late else x[v]
            if event.kind == "reduced":
                own[v] = k
            if gap.weights is EdgeWeighting.GRAPH:
                counts = [weight[s, v] for s, _ in event.used]
                mine = 1 - sum(counts)
            elif gap.weights is EdgeWeighting.UNIFORM:
                counts = [1 / (len(event.used) + 1)] * len(event.used)
                mine = 1 / (len(event.used) + 1)
            else:
                raw = [of - (k - gap.staleness) + 1 for _, of in event.used]
                me = max(1, own[v] - (k - gap.staleness) + 1)
                counts, mine = [c / (me + sum(raw)) for c in raw], me / (me + sum(raw))
            mean = mine * base
            for c, used in zip(counts, event.used, strict=True):
                mean = mean + c * sent[used]
            if late:
                has_data = k in results[v]["calls"]
                x[v] = mean + (case.push[v, k] if has_data else 0.0)
            else:
                x[v] = mean
    return x
