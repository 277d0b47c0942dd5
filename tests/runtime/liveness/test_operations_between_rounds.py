"""Operations between rounds: a peer that took part and then continued or finished is not reported missing.

Worker 0 sees the end of each of its operations only after the other one or three workers have reached their next wait
or have finished, and after it has read the state that they published there.
"""

import json
import re
import threading
import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

from helpers.hybrid_runs import Case, data_of, part_of
from helpers.hybrid_runs import start as start_tables
from helpers.quorum_runs import WIDTH, TwoBuckets
from helpers.thread_ranks import on_ranks
from helpers.training import wrap
from helpers.waiting import until
from partreduce import Cluster, DistributedOptimizer, Schedule, load_checkpoint, save_checkpoint
from partreduce.errors import HandshakeError, PeerFailedError, UnavailableError
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.handshake import handshake
from partreduce.runtime.liveness.heartbeat import ALL_CALL, UNEQUAL, Heartbeat
from partreduce.runtime.transport import waiting
from partreduce.runtime.transport.store import DEATHS, Notes, publish_stage, read_stage
from partreduce.runtime.transport.work import Work
from partreduce.strategies import (
    AllReduce,
    IterationGap,
    MissedResultPolicy,
    NeighborAveraging,
    Pairwise,
    PartialAllReduce,
    QuorumStart,
    Round,
)

SEEN_SECONDS = 60


def complete_late(work, heartbeat, peers_continued):
    """A work handle that completes after the peers have continued and worker 0 has read their state."""
    looks, end = [], time.monotonic() + SEEN_SECONDS

    def is_completed():
        if not work.is_completed() or not peers_continued():
            assert time.monotonic() < end, "the others do not continue"
            return False
        if not looks:
            looks.append(heartbeat.looks)
        return heartbeat.looks > looks[0]

    return Work(is_completed, work.wait)


@pytest.fixture
def late(monkeypatch):
    """Delay worker 0 in the waits of its main thread; return the kinds of the delayed operations."""
    doing, threads, waits, held = {}, {}, Counter(), []
    monkeypatch.setattr(waiting, "GLANCE_SECONDS", 0.005)
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.01)
    look, stop, wait = Heartbeat.in_other_gathering, Heartbeat.stop, Reducer.wait_for
    monkeypatch.setattr(Heartbeat, "looks", 0, raising=False)

    def is_main(rank):
        return threading.get_ident() == threads.setdefault(rank, threading.get_ident())

    def set_now(self, now):
        if is_main(self.rank):
            doing[self.rank] = now[0] if isinstance(now[0], str) else now[0]()
        vars(self)["now"] = now

    def count_looks(self, members, round_):
        found = look(self, members, round_)
        self.looks += 1
        return found

    def mark_and_stop(self):
        doing[self.rank] = "entered nothing more"
        stop(self)

    def wait_for(self, work, operation, abort_reason=None):
        rank, what = self.world.rank, str(operation)
        if is_main(rank):
            waits[rank, what] += 1  # an operation may have several successive parts
        if rank == 0 and is_main(0):
            others = set(operation.members) - {0}

            def has_continued(other):
                text = doing.get(other, "")
                if what in text:
                    return waits[other, what] > waits[0, what]
                return text.startswith(("entered", "waits"))

            held.append(operation.kind)
            work = complete_late(work, self.heartbeat, lambda: all(map(has_continued, others)))
        wait(self, work, operation, abort_reason)

    for owner, name, new in (
        (Heartbeat, "now", property(lambda self: vars(self)["now"], set_now)),
        (Heartbeat, "in_other_gathering", count_looks),
        (Heartbeat, "stop", mark_and_stop),
        (Reducer, "wait_for", wait_for),
    ):
        monkeypatch.setattr(owner, name, new, raising=False)  # `now` exists only on instances
    return held


SYNCHRONOUS = AllReduce()
EQUAL = AllReduce(sync=PartialAllReduce(quorum=QuorumStart.SOLO))
DIVERGING = AllReduce(
    sync=PartialAllReduce(quorum=QuorumStart.SOLO, missed=MissedResultPolicy.LATEST, synchronize_every=1)
)


def optimizer_of(world, strategy):
    model = TwoBuckets(np.zeros(WIDTH))
    return model, wrap(world, model, strategy, lr=1.0)


def look_at_mean(optimizer, folder):
    with optimizer.mean_model():
        pass


PLACES = {
    "mean_model": look_at_mean,
    "save": save_checkpoint,
    "load": lambda optimizer, folder: load_checkpoint(optimizer, folder / "none"),
    "load_state_dict": lambda optimizer, folder: optimizer.load_state_dict(optimizer.state_dict()),
}


MANY = ["steps", "mean_model", "save", "mean_model", "load_state_dict", "mean_model", "save"]
AGAIN = ["steps", "mean_model", "load_state_dict"]


@pytest.mark.parametrize(
    ("strategy", "places"),
    [
        *((SYNCHRONOUS, places) for places in ([], ["load", "mean_model"], MANY, AGAIN)),
        *((EQUAL, places) for places in (["steps"], ["load", "mean_model"], MANY)),
        *((DIVERGING, places) for places in ([], ["mean_model"], MANY, AGAIN)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_late_worker_between_rounds_reports_no_peer_missing(ranks, late, tmp_path, strategy, places):
    def work(world):
        model, optimizer = optimizer_of(world, strategy)
        for place in places:
            for _ in range(2 if place == "steps" else 0):
                model.set_gradient(np.ones(WIDTH))
                optimizer.step()
            if place != "steps":
                PLACES[place](optimizer, tmp_path)
        optimizer.finish()
        return model.values()

    values = ranks.run(2, work)
    assert np.array_equal(*values)
    assert "initial broadcast" in late
    assert "mean model" in late, "of finish()"


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("last", ["lookups", "state_dict"])
def test_late_worker_in_a_lookup_reports_no_peer_missing(ranks, late, last):
    case = Case()
    words, bags, _ = data_of(case)

    def work(world):
        model, optimizer = start_tables(case, world)
        words_here, bags_here, _ = part_of((words, bags, words), world.rank)
        for _ in range(2):
            with torch.no_grad():
                model(words_here[0, 0], bags_here[0, 0])
            if last == "state_dict":
                model.state_dict()
            with optimizer.mean_model():
                pass
        with torch.no_grad():
            model(words_here[0, 0], bags_here[0, 0])
        if last == "state_dict":
            model.state_dict()
        optimizer.finish()

    ranks.run(4, work)
    assert "tables: lookup" in late
    assert "mean model" in late


def test_peer_that_finished_without_the_operation_is_named_at_once(ranks):
    def evaluates(world):
        _, optimizer = optimizer_of(world, SYNCHRONOUS)
        if world.rank == 0:
            with optimizer.mean_model():
                pass
        optimizer.finish()

    ranks.fresh()
    errors = ranks.run(2, evaluates, catch=PeerFailedError)
    assert "worker 1 finished after 0 rounds" in str(errors[0])

    def looks_up(world):
        case = Case()
        words, bags, _ = part_of(data_of(case), world.rank)
        model, optimizer = start_tables(case, world)
        if world.rank:
            optimizer.finish()
        with torch.no_grad():
            model(words[0, 0], bags[0, 0])

    ranks.fresh()
    errors = ranks.run(4, looks_up, catch=PeerFailedError)
    assert "finished after 0 rounds" in str(errors[0])


@pytest.mark.parametrize("place", ["mean_model", "save"])
def test_collective_call_inside_join_is_named_at_once(ranks, tmp_path, place):
    def work(world):
        model, optimizer = optimizer_of(world, SYNCHRONOUS)
        with optimizer.join():
            model.set_gradient(np.ones(WIDTH))
            optimizer.step()
            if world.rank == 0:
                PLACES[place](optimizer, tmp_path)

    ranks.fresh()
    results = [str(error) for error in ranks.run(2, work, catch=PeerFailedError)]
    name = {"mean_model": "mean_model()", "save": "save_checkpoint()"}[place]
    line = f"data ended before round 1: worker 0 waits for all in {name} after 1 rounds: a worker whose data ended"
    assert results[1].startswith(line)
    assert "worker 1" in results[0]


# One worker alone in a collective call, or in a long step: the messages of all workers.


RING = (Round.from_edges(2, [(0, 1, Fraction(1, 2)), (1, 0, Fraction(1, 2))]),)
STRATEGIES = {
    "gradients": AllReduce(),
    "parameters": AllReduce(steps_per_round=2),
    "gap": NeighborAveraging(rounds=RING, sync=IterationGap(max_ig=2)),
}
ADVICE = ALL_CALL.format("mean_model()", UNEQUAL)


def train(world, strategy, steps):
    model = TwoBuckets(np.zeros(WIDTH))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = Schedule("alone", Cluster.regular(1, 2), strategy)
    optimizer = DistributedOptimizer(inner, model, schedule, world=world, timeout=300)  # far beyond any test's limit
    step(optimizer, model, steps)
    return optimizer, model


def step(optimizer, model, times):
    for _ in range(times):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()


@pytest.mark.parametrize("then", [0, 8])
@pytest.mark.parametrize("name", STRATEGIES)
def test_mean_model_on_one_worker_is_named_at_once_with_advice(ranks, name, then):
    """As under `if rank == 0:`; the other worker continues or finishes."""

    def run(world):
        optimizer, model = train(world, STRATEGIES[name], 4)
        if world.rank == 0:
            with optimizer.mean_model():
                pass
        step(optimizer, model, then)
        optimizer.finish()

    errors = ranks.run(2, run, catch=PeerFailedError)
    alone, other = map(str, errors)
    rounds = 2 if name == "parameters" else 4
    # The worker that detects the mismatch first names the other.
    first = f"worker 0 waits for all in mean_model() after {rounds} rounds: {ADVICE}"
    assert first in other or (
        f"worker 1 finished after {rounds} rounds, without mean_model()" in other and ADVICE in other
    )
    assert "this worker 0 is in mean_model()" in alone or "without mean_model()" in alone or "worker 1 gave" in alone


@on_ranks(2, [("computes step 36", ())] * 2)
def test_worker_that_never_waited_reports_its_current_step(world):
    """A worker that never waits must not appear to be in its start after 36 rounds."""
    optimizer, _ = train(world, Pairwise(active=(0,)), 36)
    last = optimizer.run.reducer.heartbeat.last
    optimizer.finish()
    return last


def test_stage_of_a_dead_worker_omits_activity_before_its_first_round():
    """The worker may have completed rounds since then, so a message must not claim that it started none."""
    store = torch.distributed.HashStore()
    heartbeat = Heartbeat(store, 1, "run", beats=True)

    try:
        publish_stage(store, 1, "trained", heartbeat.place)
        until(lambda: store.check([heartbeat.place]))
        assert read_stage(store, 1) == "while it trained"
        heartbeat.doing("computes step 3")
        until(lambda: read_stage(store, 1) == "while it trained; its last sign: computes step 3")
    finally:
        heartbeat.stop()


# The handshake: its requests to the store, and its messages about differing or missing workers.


def store_with(size, *, without=(), **facts_of):
    """A store with equal facts of all workers, except the given ones and those `without` any."""
    store = HashStore()
    notes = Notes(store, "handshake/1")
    for rank in range(size):
        if rank not in without:
            facts = {"number of workers": str(size), "model": "a", **facts_of.get(f"worker_{rank}", {})}
            notes.write(f"facts/{rank}", json.dumps(facts))
    return store


@pytest.mark.parametrize("size", [2, 64])
def test_handshake_reads_all_workers_in_one_request(size, monkeypatch):
    requested, ask = [], Notes._ask
    monkeypatch.setattr(Notes, "_ask", lambda notes, action: requested.append(1) or ask(notes, action))
    store = store_with(size)
    requested.clear()
    handshake(store, 0, size, {"model": "a"}, timeout=60)
    assert len(requested) == 2, "one write of its own facts, and one read of all"


def test_handshake_names_the_differing_rank_despite_a_missing_one():
    store = store_with(5, without=(4,), worker_1={"model": "b"})
    with pytest.raises(HandshakeError, match="model differs: rank 1 has b; the others have a"):
        handshake(store, 2, 5, {"model": "a"}, timeout=60)


@pytest.mark.parametrize(
    ("strategy", "width", "options", "words"),
    [
        (AllReduce(steps_per_round=2), 8, {}, "schedule differs: rank 2 has 'trained'"),
        (AllReduce(), 9, {}, r"model differs: rank 2 .*weight 9×4.*weight 8×4"),
        (AllReduce(), 8, {"buffers": "local"}, "buffers differs: rank 2 has local"),
    ],
)
def test_handshake_names_a_differing_schedule_model_or_option(ranks, strategy, width, options, words):
    def work(world):
        differs = world.rank == 2
        model = torch.nn.Linear(4, width if differs else 8)
        wrap(world, model, strategy if differs else AllReduce(), **(options if differs else {}))

    (message,) = set(map(str, ranks.run(3, work, catch=HandshakeError)))
    assert re.search(words, message)


def test_handshake_timeout_names_only_missing_ranks():
    with pytest.raises(UnavailableError, match=r"^handshake: ranks 1, 3 of 4 did not arrive within 0\.05 s"):
        handshake(store_with(4, without=(1, 3)), 0, 4, {"model": "a"}, timeout=0.05)


def test_given_up_handshake_raises_before_the_timeout():
    with pytest.raises(UnavailableError, match=r"^handshake: a vote is open$"):
        handshake(
            store_with(3, without=(1,)), 0, 3, {"model": "a"}, timeout=3600, abort_reason=lambda: "a vote is open"
        )


def test_handshake_names_a_dead_worker_before_the_timeout():
    store = store_with(3, without=(1,))
    Notes(store, DEATHS).write("1", "was killed by signal 9 (SIGKILL)")
    with pytest.raises(UnavailableError, match=r"^handshake: worker 1 was killed by signal 9 \(SIGKILL\) before it"):
        handshake(store, 0, 3, {"model": "a"}, timeout=3600)
