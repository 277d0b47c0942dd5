"""Random runs of workers that keep a gap: their schedules, what each worker does, and what a replay says of it."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import torch

from helpers.random_schedules import Quadratic
from preduce.runtime.optimizer import DistributedOptimizer
from preduce.runtime.strategies.gap.sizes import hop_of
from preduce.schedulers.protocols.base import Note, Received, Send
from preduce.schedulers.protocols.hop import Ack, Advance, Reduce, SendUpdate, Token, Update
from preduce.topo.cluster import Cluster
from preduce.topo.errors import ScheduleError
from preduce.topo.round import Round
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.gap import Gap, Order, Reducing, Skip, Weights
from preduce.topo.strategies.neighbor import Neighbor
from preduce.verify.gaps.exact import exact_bounds

WIDTH = 3


def dyadic_round(n, edges):
    """Every edge gets 1/8 (at most 7 in-neighbours), so that averages of dyadic numbers have no rounding error."""
    return Round.from_edges(n, [(u, v, Fraction(1, 8)) for u, v in edges])


def ring_edges(n, *, both=True):
    forward = [(v, (v + 1) % n) for v in range(n)]
    return sorted({*forward, *((v, u) for u, v in forward)} if both else set(forward))


def plan_of(n, edges, gap, *, pace=1, name="gap"):
    return Schedule(name, Cluster.regular(1, n), Neighbor(rounds=(dyadic_round(n, edges),), when=gap, pace=pace))


@dataclass(frozen=True)
class GapCase:
    schedule: Schedule
    rounds: int
    start: np.ndarray  # (n, WIDTH)
    push: np.ndarray  # (n, rounds, WIDTH): what step k adds
    delays: dict  # (worker, number of the call) -> seconds before that step
    jitter: float
    uneven: tuple  # rounds of data of each worker

    @property
    def gap(self):
        return self.schedule.strategy.when


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
    """A setting that the schedule accepts; each kind about as often as the others."""
    sources = Counter(v for _, v in edges)
    kind = rng.choice(["standard", "notify_ack", "staleness", "backup", "both", "skip"])
    while True:
        gap = {"max_ig": rng.choice([None, 1, 2, 4]), "order": rng.choice(list(Order))}
        gap["weights"] = rng.choice([Weights.GRAPH, Weights.UNIFORM])
        gap["notify_ack"] = kind == "notify_ack"
        if kind in ("staleness", "both") or (kind == "skip" and rng.random() < 0.5):
            gap["staleness"] = rng.choice([1, 2, 5])
            gap |= {"reduce": rng.choice(list(Reducing)), "weights": rng.choice(list(Weights))}
        if kind in ("backup", "both") or (kind == "skip" and (rng.random() < 0.5 or "staleness" not in gap)):
            gap["backup"] = rng.choice([1, tuple(rng.randint(0, sources[v]) for v in range(n))])
        if kind == "skip":
            trigger = rng.choice([2, 2, 3])
            gap["skip"] = Skip(limit=rng.choice([trigger, 10]), trigger=trigger)
        gap["inquire"] = gap["max_ig"] is not None and rng.random() < 0.4
        try:
            return plan_of(n, edges, Gap(**gap))
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
    )


def optimizer_of(world, schedule, start, *, timeout=30, lr=1.0, **options):
    model = Quadratic(np.array(start, dtype=float), torch.float64)
    inner = torch.optim.SGD(model.parameters(), lr=lr, foreach=False)
    optimizer = DistributedOptimizer(inner, model, schedule, timeout=timeout, initial="keep", world=world, **options)
    return model, optimizer


def gap_problems(case, results):
    """Where two workers were further apart than was proved, by the instants at which they entered their steps."""
    machine = hop_of(case.schedule.strategy)
    bounds = exact_bounds(machine.graph, case.gap)
    entered = sorted(
        (event.seconds, v, event.step)
        for v, result in enumerate(results)
        for event in result["events"]
        if event.kind == "entered"
    )
    steps, problems = [0] * machine.num_processes, []
    for _, v, step in entered:
        steps[v] = step
        for u, other in enumerate(steps):
            bound = bounds[v][u]
            if bound is not None and step - other > bound:
                problems.append(f"worker {v} in {step}, worker {u} in {other}: bound {bound}")
    return problems


def run_gap_case(case, world):
    """One worker's run: its parameters after the last round, and its log."""
    rank, rng = world.rank, random.Random(f"{case.schedule.name} {world.rank}")
    model, optimizer = optimizer_of(world, case.schedule, case.start[rank])
    optimizer.runner.log.is_on = True
    calls = []
    with optimizer.join():
        number = 0
        while optimizer.round < case.uneven[rank]:
            round_ = optimizer.round
            time.sleep(case.delays.get((rank, number), 0.0) + case.jitter * rng.random())
            model.set_gradient(0.0, case.push[rank, round_])
            optimizer.step()
            calls.append(round_)
            number += 1
    values = model.values().numpy().copy()
    ended = optimizer.round
    log = optimizer.runner.log
    optimizer.finish()
    return {"values": values, "ended": ended, "events": list(log.events), "log": log, "calls": calls}


def replay(case, results):
    """What a fresh protocol object and NumPy say of what all workers recorded: sentences about deviations, if any."""
    machine = hop_of(case.schedule.strategy)
    n = machine.num_processes
    states, transit, problems = {}, Counter(), []
    for v in range(n):
        states[v], actions = machine.start(v)
        assert not actions

    def carry(v, event, when):
        states[v], actions = machine.step(v, states[v], event)
        notes = []
        for action in actions:
            if isinstance(action, Send):
                transit[v, action.to, action.message] += 1
            elif isinstance(action, Note):
                notes.append(action.what)
        return notes

    merged = sorted((event.seconds, v, i) for v in range(n) for i, event in enumerate(results[v]["events"]))
    entered_first = set()
    for seconds, v, i in merged:
        event = results[v]["events"][i]
        if event.kind == "entered" and v not in entered_first:
            entered_first.add(v)
            continue
        received = {
            "update": lambda e=event: Update(e.step),
            "tokens": lambda e=event: Token(e.by),
            "ack": lambda: Ack(),
        }
        if event.kind in received:
            message = received[event.kind]()
            if transit[event.source, v, message] < 1:
                problems.append(f"worker {v} received {message} from {event.source}, which nobody sent")
            transit[event.source, v, message] -= 1
            carry(v, Received(event.source, message), seconds)
            continue
        if event.kind == "renewed":
            following = results[v]["events"][i + 1]
            wanted = Advance(following.by)
            if wanted not in machine.ready(v, states[v]):
                problems.append(f"worker {v} may not skip by {following.by} in {states[v]}")
                continue
            notes = carry(v, wanted, seconds)
            if ("renewed", event.step, event.used) not in notes:
                problems.append(f"worker {v}: renewed {event.step} with {event.used}, protocol {notes}")
            continue
        if event.kind == "entered" and event.by > 1:
            continue  # with what was renewed before
        wanted = {"sent": SendUpdate(), "reduced": Reduce(), "entered": Advance()}[event.kind]
        if wanted not in machine.ready(v, states[v]):
            problems.append(f"worker {v}: {event} is not ready in {states[v]}")
            continue
        step = states[v].step
        notes = carry(v, wanted, seconds)
        if event.kind == "reduced" and notes != [("reduced", event.step, event.used)]:
            problems.append(f"worker {v}: reduced {event.step} with {event.used}, protocol {notes}")
        if event.kind == "entered" and states[v].step != event.step:
            problems.append(f"worker {v}: entered {event.step}, protocol {states[v].step}")
        if event.kind == "sent" and step != event.step:
            problems.append(f"worker {v}: sent {event.step}, protocol {step}")
    return problems


def replayed_values(case, results):
    """The parameters of all workers from the recorded sets of updates, in NumPy; (n, WIDTH)."""
    gap, graph = case.gap, case.schedule.strategy.rounds[0]
    n = graph.num_workers
    weight = {(s, t): float(w) for s, t, w in graph.edges()}
    x = case.start.copy()
    sent = {}  # (worker, step) -> array
    begun = x.copy()
    own = [0] * n
    merged = sorted((event.seconds, v, i) for v in range(n) for i, event in enumerate(results[v]["events"]))
    for _, v, i in merged:
        event = results[v]["events"][i]
        if event.kind == "entered":
            begun[v] = x[v]
        if event.kind == "sent":
            has_data = event.step in results[v]["calls"]
            u = case.push[v, event.step] if has_data else 0.0
            if gap.order is Order.SERIAL:
                x[v] = x[v] + u
            sent[v, event.step] = x[v].copy()
        if event.kind in ("reduced", "renewed"):
            k = event.step
            late = event.kind == "reduced" and gap.order is Order.PARALLEL
            base = begun[v] if late else x[v]
            if event.kind == "reduced":
                own[v] = k
            if gap.weights is Weights.GRAPH:
                counts = [weight[s, v] for s, _ in event.used]
                mine = 1 - sum(counts)
            elif gap.weights is Weights.UNIFORM:
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
