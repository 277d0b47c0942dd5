"""Messages of waiting workers name the worker that blocks the others, not the nearest one."""

import random
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed import HashStore

from partreduce.errors import FileError, InputError, PeerFailedError, UnavailableError
from partreduce.runtime.liveness.heartbeat import ALL_CALL, UNEQUAL, Heartbeat
from partreduce.runtime.liveness.keepalive_sockets import closed_notes
from partreduce.runtime.liveness.store_collectives import broadcast_decision, gather_from_store
from partreduce.runtime.liveness.uneven_inputs import UnevenInputs
from partreduce.runtime.liveness.wait_chain import SILENCE_SECONDS, Sign, clause
from partreduce.runtime.transport import waiting
from partreduce.runtime.transport.store import DEATHS, Notes

SILENT, ALIVE = SILENCE_SECONDS + 3, 0.1


def text(signs, rank=0, members=(1,), seconds=None):
    return clause(rank, members, lambda other: signs[other], seconds)


ENTERED = Sign("entered the average of round 4 in group {0,1}", (0,), SILENT)
SAID = "worker 1, which gave no sign of life for 4.2 s (its last: it entered the average of round 4 in group {0,1})"


@pytest.mark.parametrize(
    ("signs", "members", "expected"),
    [
        ({1: ENTERED}, (1,), SAID),
        (
            {1: Sign("a", (0, 2), ALIVE), 2: Sign("b", (1, 3), ALIVE), 3: ENTERED}, (1,),
            f"worker 1, which waits for worker 2, which waits for {SAID.replace('worker 1', 'worker 3')}",
        ),
        (
            {1: Sign("entered a", (0, 2), ALIVE), 2: Sign("finished b", (), ALIVE)}, (1,),
            "worker 1, which waits for worker 2, which finished b",
        ),
        (
            {1: Sign("late", (), SILENCE_SECONDS + 0.1), 2: Sign("stopped", (), 4 * SILENCE_SECONDS)}, (1, 2),
            "worker 2, which gave no sign of life for 4.8 s (its last: it stopped)",
        ),
        ({1: Sign("a", (0, 2), ALIVE), 2: Sign("b", (0, 1), ALIVE)}, (1, 2), "worker 1, which a; worker 2, which b"),
        ({1: Sign("", (), None)}, (1,), "worker 1, which gave no sign of life"),
    ],
    ids=["silent", "chain", "no silence", "late heartbeat", "cycle", "no heartbeat"],
)  # fmt: skip
def test_wait_chain_names_the_blocking_worker(signs, members, expected):
    """The silent end of a chain; without a silent worker, the worker that does not wait, or all members of a cycle."""
    assert text(signs, members=members) == f"waits for {expected}"
    assert text(signs, members=members, seconds=5) == f"waits for {expected}, for more than 5 s"


def test_silent_member_is_described_by_its_last_published_activity():
    """Activity is published twice a second, so a worker stopped after 36 quick rounds may have published none."""
    heartbeat = Heartbeat(dist.HashStore(), 1, "run", beats=False)
    found = text({1: Sign(*heartbeat.last, SILENT)})
    assert found == "waits for worker 1, which gave no sign of life for 4.2 s (its last: it has not started a round)"


def test_random_wait_graphs_name_the_stopped_worker():
    for seed in range(300):
        rng = random.Random(seed)
        n = rng.randrange(3, 12)
        stopped = rng.randrange(n)
        waits = {r: tuple(rng.sample(range(n), rng.randrange(1, 3))) for r in range(n)}
        signs = {r: Sign("x", waits[r], SILENT if r == stopped else ALIVE) for r in range(n)}
        for rank in set(range(n)) - {stopped}:
            reached, edge = {rank}, [rank]
            while edge:
                now = edge.pop()
                new = set() if now == stopped else set(waits[now]) - reached
                reached |= new
                edge += new
            named = text(signs, rank, [r for r in waits[rank] if r != rank])
            if stopped in reached:
                assert named.split(", which ")[-2].endswith(f"worker {stopped}"), (seed, rank, named)


def test_worker_in_a_later_gathering_is_not_missing_from_this_one():
    """With several steps per round, worker 1 has left the first mean_model() of round 12 and is in the second."""
    store = dist.HashStore()
    slow, quick = (Heartbeat(store, rank, "1", beats=False) for rank in (0, 1))
    with quick.gathering("mean_model()", 12):
        pass
    with slow.gathering("mean_model()", 12):
        assert slow.in_other_gathering((0, 1), 12) is None
        quick.gather("mean_model()", 12)
        assert slow.in_other_gathering((0, 1), 12) is None
    advice = ALL_CALL.format("mean_model()", UNEQUAL)
    assert slow.in_other_gathering((0, 1), 12) == f"worker 1 waits for all in mean_model() after 12 rounds: {advice}"
    assert slow.in_other_gathering((0, 1), 11) is None


def test_worker_without_data_names_the_blocking_worker():
    """Workers 0 and 2 have no data left; worker 1 neither begins a round nor ends."""
    store = dist.HashStore()
    slow = Heartbeat(store, 1, "run", beats=True)
    ended = [
        UnevenInputs(store, rank, 3, Heartbeat(store, rank, "run", beats=False), key="run", timeout=0.5)
        for rank in (0, 2)
    ]
    for one in ended:
        one.ended()
    expected = "data ended before round 4: .* not all ended; this worker waits for worker 1, which has not started a"
    with pytest.raises(UnavailableError, match=expected):
        ended[0].another(4)
    slow.stop()


@pytest.mark.parametrize("lost", [None, frozenset], ids=["fixed", "elastic"])
@pytest.mark.parametrize("decided", ["", "ended/1", "round/4"], ids=["undecided", "all have ended", "begun"])
def test_worker_without_data_names_a_peer_in_a_collective_call(monkeypatch, decided, lost):
    """Named at once, unless the peer entered the call after the wait was decided."""
    store, saw = dist.HashStore(), Heartbeat.in_other_gathering
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "GLANCE_SECONDS", 0.0)
    waits = Heartbeat(store, 1, "run", beats=False)
    ended = UnevenInputs(store, 0, 2, Heartbeat(store, 0, "run", beats=False), key="run", timeout=3)

    def elsewhere(heartbeat, *given):
        waits.gather("save_checkpoint()", 4)
        if decided:
            Notes(store, "uneven-inputs/run").write(f"0/{decided}", "1")
        return saw(heartbeat, *given)

    monkeypatch.setattr(Heartbeat, "in_other_gathering", elsewhere)
    ended.ended()
    if decided:
        assert ended.another(4, lost) == (decided == "round/4")
        return
    with pytest.raises(PeerFailedError) as caught:
        ended.another(4, lost)
    assert str(caught.value) == (
        "data ended before round 4: worker 1 waits for all in save_checkpoint() after 4 rounds: a worker whose data "
        "ended does not come to that; call it behind `with optimizer.join():`, or before any data ends"
    )


@pytest.mark.parametrize("lost", [None, frozenset], ids=["fixed", "elastic"])
def test_finish_names_a_peer_in_a_collective_call_before_the_timeout(lost):
    store = dist.HashStore()
    waits, ends = (Heartbeat(store, rank, "run", beats=False) for rank in (1, 0))
    waits.gather("mean_model()", 4)
    advice = ALL_CALL.format("mean_model()", UNEQUAL)
    with pytest.raises(PeerFailedError) as caught:
        UnevenInputs(store, 0, 2, ends, key="run", timeout=3).meet(4, lost)
    assert str(caught.value) == f"finish: worker 1 waits for all in mean_model() after 4 rounds: {advice}"


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        (ALIVE, "which trains: not all did finish within 0.1 s after this one: all workers"),
        (SILENT, "(its last: it trains); tolerate failures"),
    ],
)
def test_finish_advises_by_whether_the_late_worker_is_alive(silent, words, monkeypatch):
    store = dist.HashStore()
    ends = Heartbeat(store, 0, "run", beats=False, way_to_continue=lambda: "; tolerate failures")
    monkeypatch.setattr(ends, "last_heartbeat", lambda _: Sign("trains", (), silent))
    with pytest.raises(UnavailableError) as caught:
        UnevenInputs(store, 0, 2, ends, key="run", timeout=0.1).meet(4, None)
    assert words in str(caught.value)
    assert ("not all did finish" in str(caught.value)) == (silent == ALIVE)


LATE = {
    "finish": (lambda one, lost: one.meet(4, lost), "heartbeat/run/finished/1", "4", (0, 1)),
    "join": (lambda one, lost: one.another(4, lost), "uneven-inputs/run/0/round/4", "1", True),
}


@pytest.mark.parametrize("place", LATE)
def test_timeout_begins_again_after_a_change_of_members(monkeypatch, place):
    """A vote without worker 2 takes longer than the timeout, and worker 1 arrives soon after it."""
    wait, key, text, expected = LATE[place]
    monkeypatch.setattr(waiting, "DIAGNOSE_SECONDS", 0.0)
    store, calls = dist.HashStore(), []
    one = UnevenInputs(store, 0, 3, Heartbeat(store, 0, "run", beats=False), key="run", timeout=1.0)

    def vote():
        calls.append(1)
        for _ in range(3 if len(calls) == 1 else 0):
            time.sleep(0.5)
            waiting.own_time()
        if len(calls) == 2:
            store.set(key, text)
        return frozenset({2})

    assert wait(one, vote) == expected


def test_finish_does_not_name_a_lost_peer():
    """It was killed in a collective call that the others then passed without it."""
    store = dist.HashStore()
    waits, ends = (Heartbeat(store, rank, "run", beats=False) for rank in (1, 0))
    waits.gather("mean_model()", 4)
    assert UnevenInputs(store, 0, 2, ends, key="run", timeout=60).meet(4, lambda: frozenset({1})) == (0,)


OPERATIONS = ("round", "gathering", "exchange")


class Follower:
    """A worker that runs a list of operations, some of which are collective."""

    def __init__(self, store, rank, operations):
        self.heartbeat, self.operations = Heartbeat(store, rank, "1", beats=False), operations
        self.at, self.rounds = 0, 0

    def do(self, count):
        """Complete the next `count` operations; after the last one, finish."""
        for operation in self.operations[self.at : self.at + count]:
            with self.inside(operation):
                pass
        if self.at == len(self.operations):
            self.heartbeat.finished(self.rounds)

    @contextmanager
    def inside(self, operation):
        if operation == "gathering":
            with self.heartbeat.gathering("mean_model()", self.rounds):
                yield
        elif operation == "exchange":
            with self.heartbeat.exchange():
                yield
        else:
            yield
        self.at, self.rounds = self.at + 1, self.rounds + (operation == "round")

    def misses(self):
        """Whether this worker reports that worker 1 will not join the current operation."""
        found = (self.heartbeat.in_other_gathering((0, 1), self.rounds), self.heartbeat.cause((0, 1), self.rounds))
        return any(one is not None for one in found)


@pytest.mark.parametrize("seed", range(80))
def test_only_workers_that_skip_an_operation_are_reported_missing(seed):
    """Worker 0 is inside an operation; worker 1 has completed it and continued, or skips it and finishes."""
    draw = random.Random(seed)
    operations = draw.choices(OPERATIONS, k=draw.randrange(1, 9))
    here = draw.randrange(len(operations))
    for leaves_out in (False, True):
        store = dist.HashStore()
        slow = Follower(store, 0, operations)
        theirs = operations
        if leaves_out:
            theirs = operations[:here] + ["round"] * (0 if operations[here] == "round" else draw.randrange(3))
        quick = Follower(store, 1, theirs)
        order = [(slow, 1)] * here + [(quick, 1)] * here
        draw.shuffle(order)
        for follower, count in order:
            follower.do(count)
        assert slow.at == quick.at == here
        with slow.inside(operations[here]):
            for _ in range(len(theirs) - here):
                assert leaves_out or not slow.misses(), operations
                quick.do(1)
            quick.do(0)
            assert slow.misses() == leaves_out, operations


@pytest.mark.parametrize("seed", range(60))
def test_root_cause_is_named_before_its_consequences(seed):
    """The order: a signal, an exception or unannounced death, the first failure of the run, exit codes."""
    draw, store = random.Random(seed), dist.HashStore()
    mine, *others = (Heartbeat(store, rank, "1", beats=False) for rank in range(4))
    deaths, found = Notes(store, DEATHS), {kind: [] for kind in ("signal", "left", "closed", "failed", "exit")}
    for other in others:
        kinds = {kind for kind in found if draw.random() < 0.2} - ({"exit"} if draw.random() < 0.5 else set())
        for kind in kinds - ({"exit"} if "signal" in kinds else set()):
            found[kind].append(other.rank)
            if kind in ("left", "failed"):
                other.note(kind, f"{kind} it")
            elif kind == "closed":
                closed_notes(store, "1").write(str(other.rank), "closed it")
            else:
                deaths.write(str(other.rank), "ended with exit code 3" if kind == "exit" else "died of a signal")
    first = draw.choice([None, None, 0, 1, 2, 3])
    if first is not None:
        (mine, *others)[first].record_failure("a round")
        others[0].record_failure("a later one")
    wordless = [rank for rank in found["closed"] if rank not in found["failed"]]
    lines = [f"worker {rank} {text}" for ranks, text in (
        (found["signal"], "died of a signal"), (found["left"], "left it"), (wordless, "closed it"),
    ) for rank in ranks]  # fmt: skip
    lines += [f"worker {first} gave up first, with: a round"] if first else []
    lines += [f"worker {rank} ended with exit code 3" for rank in found["exit"]]
    assert mine.cause(range(4)) == (lines or [None])[0]
    assert mine.cause([0]) == (f"worker {first} gave up first, with: a round" if first else None)
    assert mine.lost(range(4)) == {rank for ranks in found.values() for rank in ranks}


# Texts and decisions that workers exchange over the store.


def test_gather_from_store_keeps_order_and_names_the_missing_worker():
    world = SimpleNamespace(store=HashStore())
    notes = Notes(world.store, "place")
    notes.write("b", "second")
    notes.write("a", "first")
    assert gather_from_store(world, "place", {"a": 1, "b": 2}, 60, who="pilot") == ["first", "second"]
    with pytest.raises(UnavailableError, match=r"^pilot: worker 3 did not answer within 0\.1 s"):
        gather_from_store(world, "place", {"a": 1, "c": 3}, 0.1, who="pilot")


def workers():
    store = HashStore()
    return [SimpleNamespace(store=store, rank=rank) for rank in range(2)]


def test_broadcast_decision_returns_worker_0s_decision():
    for world in workers():
        found = broadcast_decision(world, "place", lambda rank=world.rank: {"asked": [rank]}, 60, who="pilot")
        assert found == {"asked": [0]}, "only worker 0 decides"


@pytest.mark.parametrize(
    ("error", "raised"),
    [(UnavailableError, UnavailableError), (PeerFailedError, PeerFailedError), (FileError, InputError)],
)
def test_broadcast_decision_raises_worker_0s_error_on_all_workers(error, raised):
    def decide():
        raise error("worker 3 did not answer")

    for world in workers():
        with pytest.raises(raised, match=r"^worker 3 did not answer$") as caught:
            broadcast_decision(world, "place", decide, 60, who="pilot")
        assert caught.type is raised
