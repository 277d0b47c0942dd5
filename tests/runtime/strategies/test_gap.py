"""Hop at run time: averages match the protocol, and the gap between workers stays within the proved bound."""

import os
import threading
import time
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.explore.hop import exact_bounds
from helpers.gap_runs import (
    GapCase,
    gap_problems,
    make_gap_case,
    plan_of,
    replay,
    replayed_values,
    ring_edges,
    run_gap_case,
    until_left_behind,
)
from helpers.signs import Signs
from helpers.training import push_ones, wrap_quadratic
from partreduce import load_checkpoint, save_checkpoint
from partreduce.runtime.state.checkpoint_directory import file_of, read_bytes
from partreduce.runtime.state.saved_state import unpack
from partreduce.runtime.strategies.gap.driver import wait_in_step
from partreduce.runtime.strategies.protocol_driver import Missing, PeerWaitError
from partreduce.schedulers.protocols.hop import Advance, Reduce, hop_of, weights_of
from partreduce.strategies import EdgeWeighting, IterationGap, SkipPolicy, UpdateOrder

RUNS = int(os.environ.get("PARTREDUCE_GAP_RUNS", "30"))
"""`PARTREDUCE_GAP_RUNS=1000 pytest tests/runtime/strategies/test_gap.py -k replay` runs that many."""


@pytest.mark.parametrize("block", range(3))
def test_averages_match_a_replay_of_the_protocol(ranks, block):
    """Random settings, graphs, delays, and slow and paused workers; the protocol and NumPy replay the log."""
    for seed in range(block * RUNS // 3, (block + 1) * RUNS // 3):
        case = make_gap_case(seed, uneven=seed % 4 == 0)
        results = ranks.run(case.schedule.num_workers, lambda world, case=case: run_gap_case(case, world))
        assert not replay(case, results), case
        got = np.stack([result["values"] for result in results])
        np.testing.assert_allclose(got, replayed_values(case, results), rtol=0, atol=1e-12, err_msg=f"{case}")
        assert not gap_problems(case, results), case
        assert all(np.array_equal(result["means"], results[0]["means"]) for result in results if case.meets > 0)
        for result in results:
            held = [(event.fill, event.source) for event in result["events"] if event.kind == "update"]
            assert all(fill <= result["log"].facts()["capacities"][str(source)] for fill, source in held)


@pytest.mark.parametrize("order", list(UpdateOrder))
def test_updates_are_weighted_by_age_before_a_skip(ranks, order):
    """The own parameters are some steps old then, and an update may be newer than the step; NumPy replays the log."""
    gap = IterationGap(
        max_ig=4, staleness=5, weights=EdgeWeighting.ITERATION, skip=SkipPolicy(limit=10), update_order=order
    )
    numbers, n, rounds = np.random.default_rng(11), 4, 12
    start, push = numbers.normal(size=(n, 3)), numbers.normal(size=(n, rounds, 3))
    case = GapCase(plan_of(n, ring_edges(n), gap), rounds, start, push, {(0, 3): np.inf}, 0.001, (rounds,) * n)
    results = ranks.run(n, lambda world: run_gap_case(case, world))
    assert any(event.kind == "renewed" for event in results[0]["events"])
    assert not replay(case, results)
    got = np.stack([result["values"] for result in results])
    np.testing.assert_allclose(got, replayed_values(case, results), rtol=0, atol=1e-12)


def test_statistics_count_the_bytes_to_all_neighbors(ranks):
    def work(world):
        schedule = plan_of(4, ring_edges(4), IterationGap(max_ig=2))
        model, optimizer = wrap_quadratic(world, schedule.strategy, [0.0, 1.0, 2.0])
        push_ones(model, optimizer, 5)
        sent, (bucket,) = optimizer.stats()["bytes"], optimizer.run.flat.buckets
        optimizer.finish()
        return sent == 5 * 2 * bucket.flat.nbytes  # steps and neighbors

    assert all(ranks.run(4, work))


def test_weights_match_the_equations():
    edges = {1: Fraction(1, 4), 2: Fraction(1, 8)}
    assert weights_of(IterationGap(backup=1, max_ig=1), edges, 5, 5, [(2, 5)]) == (Fraction(7, 8), [Fraction(1, 8)])
    uniform = IterationGap(weights=EdgeWeighting.UNIFORM)
    assert weights_of(uniform, edges, 5, 5, [(1, 5), (2, 5)]) == (Fraction(1, 3), [Fraction(1, 3)] * 2)
    # In step 5: weight 1 for step 3, 3 for the own step, 5 for step 7.
    by_age = IterationGap(staleness=2, weights=EdgeWeighting.ITERATION)
    assert weights_of(by_age, edges, 5, 5, [(1, 3), (2, 7)]) == (Fraction(3, 9), [Fraction(1, 9), Fraction(5, 9)])
    # The own parameters are too old: weight 1.
    assert weights_of(by_age, edges, 9, 5, [(1, 9)]) == (Fraction(1, 4), [Fraction(3, 4)])


SETTINGS = [
    IterationGap(update_order=UpdateOrder.DPSGD),
    IterationGap(update_order=UpdateOrder.DPSGD, notify_ack=True),
    IterationGap(max_ig=3, staleness=2, update_order=UpdateOrder.DPSGD),
    IterationGap(max_ig=3, staleness=2),
    IterationGap(max_ig=3, backup=1, skip=SkipPolicy(limit=4)),
]


@pytest.mark.parametrize(
    ("gap", "width"),
    [
        *((gap, 3) for gap in SETTINGS),
        (
            IterationGap(update_order=UpdateOrder.DPSGD, notify_ack=True, max_ig=1),
            700_000,
        ),  # updates in two parts, which tokens and acknowledgements overtake
    ],
)
def test_run_resumes_from_its_checkpoint(ranks, gap, width, tmp_path):
    """Queues, tokens and arrays are restored; if every reduce is determined, the results are bitwise equal."""
    n, rounds, at = (4, 8, 4) if width == 3 else (3, 4, 2)
    numbers = np.random.default_rng(5)
    start, push = numbers.normal(size=(n, width)), numbers.normal(size=(n, rounds, width))
    schedule = plan_of(n, ring_edges(n), gap)

    barrier = threading.Barrier(n)

    def work(world, *, resumes):
        model, optimizer = wrap_quadratic(world, schedule, start[world.rank])
        state = {}
        if resumes:
            resumed = load_checkpoint(optimizer, tmp_path)
            assert resumed.round == at
            barrier.wait(60)
            saved, _ = unpack(read_bytes(resumed.folder / file_of(world.rank)), resumed.folder)
            state = {name: tensor.clone() for name, tensor in optimizer.runner.state().items()}
            barrier.wait(60)
            assert state.keys() == {name.removeprefix("strategy/") for name in saved if name.startswith("strategy/")}
            assert all(state[name].equal(saved[f"strategy/{name}"]) for name in state)
        while optimizer.round < rounds:
            time.sleep(0.002 * world.rank)
            model.set_gradient(0.5, push[world.rank, optimizer.round])
            optimizer.step()
            if optimizer.round == at and not resumes:
                save_checkpoint(optimizer, tmp_path)
        values = model.values().numpy().copy()
        optimizer.finish()
        return values, state

    first = ranks.run(n, lambda world: work(world, resumes=False))
    again = ranks.run(n, lambda world: work(world, resumes=True))
    for (values, _), (values_again, state) in zip(first, again, strict=True):
        assert (
            gap.update_order is UpdateOrder.ADAPT_THEN_COMBINE
            or gap.staleness
            or any(name.startswith("gap/update") for name in state)
        )
        if gap.takes_all:
            np.testing.assert_array_equal(values, values_again)


HELD = [
    ({}, True),
    ({"max_ig": 2}, False),
    ({"notify_ack": True}, True),
    ({"max_ig": 3, "staleness": 1}, True),
    ({"max_ig": 3, "staleness": 2, "backup": 1}, False),
    ({"max_ig": 2, "backup": 1, "skip": SkipPolicy(limit=10)}, True),
]


@pytest.mark.parametrize("order", list(UpdateOrder))
@pytest.mark.parametrize("held", [*((*held, False) for held in HELD), (*HELD[-1], True)], ids=str)
def test_peers_of_a_paused_worker_reach_exactly_the_proved_bound(ranks, held, order, monkeypatch):
    """Worker 0 stops in step 3, or in the next if it skipped that, after sending its update; its queues are full."""
    n, rounds = 5, 20
    options, both, is_late = held
    schedule = plan_of(n, ring_edges(n, both=both), IterationGap(update_order=order, **options))
    machine = hop_of(schedule.strategy.rounds[0], schedule.strategy.sync)
    bounds = exact_bounds(machine.graph, machine.setting)
    stop_before = Advance if machine.setting.notify_ack else Reduce  # whose acknowledgement lets its sources continue
    capacity = {u: 1 if machine.setting.staleness else bounds[u][0] + 1 for u in machine.graph.sources[0]}
    reduced = stop_before is Advance  # one update has left the queue
    wanted = [bounds[v][0] for v in range(n)], {u: (places - reduced, places) for u, places in capacity.items()}
    runners, seen, stopped, released = {}, [], [], threading.Event()

    def now():
        """How far each worker is ahead of worker 0, and the fill of worker 0's queues."""
        at = stopped[0]
        logs = [runners[v].log for v in sorted(runners)]
        entered = [[event.step for event in list(log.events) if event.kind == "entered"] for log in logs]
        return [max(steps, default=0) - at for steps in entered], runners[0].rings.fill()

    def watch():
        """Release worker 0 after its peers have stayed at the wanted positions for a moment."""
        deadline = time.monotonic() + 60
        while not released.is_set():
            if now() == wanted or time.monotonic() > deadline:
                time.sleep(0.1)
                seen.append(now())
                released.set()
            time.sleep(0.01)

    def work(world):
        model, optimizer = wrap_quadratic(world, schedule, np.zeros(3))
        runner = optimizer.runner
        runner.log.is_on = True
        runners[world.rank] = runner
        if world.rank == 0:
            awaited = runner._await

            def pausing(operation, kind):
                if is_late and kind is Advance and operation.round == 2:
                    until_left_behind(runner)
                if kind is stop_before and operation.round >= 3 and not stopped:
                    stopped.append(operation.round)
                    threading.Thread(target=watch).start()
                    assert released.wait(60)
                return awaited(operation, kind)

            monkeypatch.setattr(runner, "_await", pausing)
        while optimizer.round < rounds:
            push_ones(model, optimizer)
        optimizer.finish()
        return {"events": runner.log.events}

    results = ranks.run(n, work)
    assert seen == [wanted]
    assert stopped == [3] or schedule.strategy.sync.skip is not None
    entered = [event.step for event in results[0]["events"] if event.kind == "entered" and event.step <= stopped[0]]
    assert not is_late or entered != list(range(stopped[0] + 1)), "a late worker skips on its way"
    assert not gap_problems(SimpleNamespace(schedule=schedule, gap=machine.setting), results)


# The end of a wait: workers that have finished, in a pause and in a step.


class Heartbeat(Signs):
    """The heartbeat view of peers that have all reported their last step."""

    rank, glances = 0, 0

    def __init__(self, rounds):
        self.rounds = rounds

    def read(self, kind, rank):
        return str(self.rounds) if kind == "finished" else None

    def failure_reason(self, members, round_=None):
        return f"worker {min(members)} finished after {self.rounds} rounds" if members else None

    def num_changes(self):
        self.glances += 1
        return self.glances

    def doing(self, text, waits=()):
        self.described = text, waits


def wait(heartbeat, done, *, pausing):
    lack = Missing("the end of what was sent before all paused", (1, 3), 2)
    condition = threading.Condition()
    wait_in_step(8, done, lambda: lack, condition, heartbeat, timeout=60, check_failure=lambda: None, pausing=pausing)


def test_pause_waits_for_workers_after_their_last_step():
    """In finish() all peers have reported their last step while marks of the last pause are still in flight."""
    heartbeat = Heartbeat(8)
    wait(heartbeat, lambda: heartbeat.glances > 2, pausing=True)  # it reads their state and continues to wait
    assert heartbeat.described[1] == (1, 3)


def test_step_raises_if_a_needed_peer_has_finished():
    with pytest.raises(
        PeerWaitError, match=r"worker 1 finished after 8 rounds \(worker 0 waited in step 8 for the end"
    ):
        wait(Heartbeat(8), lambda: False, pausing=False)
