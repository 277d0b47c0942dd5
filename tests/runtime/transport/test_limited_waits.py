"""Waits inside torch have a limit, end when the operation does, and raise its error in every waiting thread."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import FileStore, HashStore, TCPStore

from helpers.signs import Signs
from helpers.thread_ranks import on_ranks
from helpers.warm import WARM
from partreduce.errors import StoreLostError, UnavailableError
from partreduce.runtime.codecs import Coding
from partreduce.runtime.profile import cluster_of
from partreduce.runtime.transport import nccl, store, waiting
from partreduce.runtime.transport.communicators import Communicator
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.nccl import check_shared_gpus
from partreduce.runtime.transport.store import DEATHS, LONGEST_POLL_SECONDS, POLL_SECONDS, Notes, Pauses, StoreLine
from partreduce.runtime.transport.waiting import (
    DIAGNOSE_SECONDS,
    MOST_SECONDS,
    Deadline,
    OwnTime,
    PeerGoneError,
    PeerTimeoutError,
    SignsOfLife,
    Wait,
)
from partreduce.runtime.transport.work import BoundedCall, Completion, OverdueError, Work
from partreduce.strategies import Codec, Transport

STARTS = {
    "all_reduce": lambda group: group.all_reduce(torch.ones(4)),
    "broadcast": lambda group: group.broadcast(torch.ones(4)),
    "all_to_all": lambda group: group.all_to_all(torch.empty(2), torch.ones(2), [1, 1], [1, 1]),
    "all_gather": lambda group: group.all_gather(torch.empty(8), torch.ones(4)),
}


def group_of(world):
    """The group of both workers, created once for each world."""
    members = (0, 1)
    return world.communicator(members) if world.has(members) else world.create(members)


@pytest.mark.parametrize("name", STARTS)
@pytest.mark.parametrize("seconds", [0.0, 1e-5, 0.02])
def test_wait_ends_at_its_limit_and_the_operation_continues(ranks, name, seconds):
    """Worker 0's wait times out, even with a limit of 0, which torch takes for no limit; then worker 1 joins."""
    may_join = threading.Event()

    def run(world):
        group = group_of(world)
        if world.rank == 1:
            may_join.wait(60)
        work = STARTS[name](group)
        assert work.ended_within is not None
        ended_early = None
        if world.rank == 0:
            ended_early = name != "broadcast" and work.ended_within(seconds)
            may_join.set()
        assert work.ended_within(60)
        work.wait()
        return ended_early

    assert ranks.run(2, run) == [False, None]


def test_group_is_abandoned_before_its_first_operation_when_a_vote_opens(ranks):
    """Worker 1 has connected and left, as for a vote on the next members; gloo alone would wait for a minute."""
    has_connected, has_ended = threading.Event(), threading.Event()

    def run(world):
        world.signs = SignsOfLife()
        if world.rank == 1:
            world._warmed_up = lambda *_: has_connected.set() or has_ended.wait(30)
            return world.create((0, 1), instance="given up")
        world.abort_reason = lambda: "a vote is open" if has_connected.is_set() else None
        try:
            world.create((0, 1), instance="given up")
        except UnavailableError as error:
            problem = str(error)
        has_ended.set()  # after the error is gone, and with it the group, whose end waits for its operations
        return problem

    ranks.fresh()
    found = ranks.run(2, run)
    ranks.fresh()
    assert found == ["group {0,1}: a vote is open", True]


class OtherGroup(Communicator):
    """The connection to a worker of another group, whose tag differs."""

    def all_reduce(self, tensor, coding=None):
        tensor += 1
        return Work(lambda: True, lambda: None)


def test_connection_to_another_group_is_closed():
    world, wrong = GlooWorld(HashStore(), 0, 2, timedelta(seconds=60)), OtherGroup((0, 1), 0, object())
    with pytest.raises(UnavailableError, match=r"group \{0,1\}: its first operation failed \(workers of different gr"):
        world._warmed_up(wrong, "cpu", None)
    assert wrong.is_closed


PENDING_OPERATION = """
import datetime, sys, threading, time
import torch
from torch.distributed import HashStore
from partreduce.runtime.transport.work import Background
from partreduce.runtime.transport.gloo import GlooWorld

store, limit, groups = HashStore(), datetime.timedelta(seconds=30), {}
def connect(rank):
    groups[rank] = GlooWorld(store, rank, 2, limit).create((0, 1))
other = threading.Thread(target=connect, args=(1,))
other.start()
connect(0)
other.join()
work = groups[0].all_reduce(torch.ones(1))
def wait():
    while not work.is_completed():
        WAIT
"""


def run_waiting(script, wait):
    return WARM.run("-c", PENDING_OPERATION.replace("WAIT", wait) + script, timeout=250)


@pytest.mark.processes
def test_main_thread_waits_inside_torch_until_the_operation_ends():
    """A wait with a limit of 100 s ends after 0.3 s."""
    result = run_waiting(
        """
begun = time.monotonic()
Background(lambda: (time.sleep(0.3), groups[1].all_reduce(torch.ones(1)).wait()), name="comes").start()
checks = []
work.wait(lambda: checks.append(1) or 100.0)
print(checks, work.is_completed(), 0.2 < time.monotonic() - begun < 60)
""",
        "pass",
    )
    assert (result.returncode, result.stdout) == (0, "[1] True True\n"), result.stderr


@pytest.mark.processes
def test_other_threads_poll_so_that_the_interpreter_can_exit():
    """A thread inside torch, as in `work.ended_within(0.002)`, would end the process by a signal."""
    script = "checks = threading.Event()\nBackground(lambda: (checks.set(), wait()), name='waits').start()\n"
    ends = run_waiting(script + "checks.wait()\ntime.sleep(0.2)\n", "work.wait(lambda: 0.05)")
    assert ends.returncode == 0, ends.stderr


@pytest.mark.processes
def test_thread_of_staged_sums_lets_the_interpreter_exit():
    """It is inside torch for a moment at a time, and the exit of the interpreter waits for that moment."""
    script = """
from partreduce.runtime.transport.multistage_allreduce import StagedSums, Stages
entered, times = threading.Event(), []
limited = work.ended_within
def timed(seconds):
    times.append(seconds)
    entered.set()
    return limited(seconds)
work.ended_within = timed
class BlockedStages(Stages):
    def sum(self, tensor, coding):
        self.wait(work)
sums = StagedSums(BlockedStages())
sums.start(torch.ones(4))
entered.wait()
print(len(times) > 0, max(times) <= 0.05)
"""
    ends = run_waiting(script, "pass")
    assert (ends.returncode, ends.stdout) == (0, "True True\n"), ends.stderr


def test_failed_operation_raises_at_every_wait(ranks):
    def run(world):
        group = group_of(world)
        if world.rank == 1:
            world.abandon()
            return None
        work = group.all_reduce(torch.ones(1))
        assert work.ended_within(60)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                work.wait()
        return True

    found = ranks.run(2, run)
    ranks.fresh()
    assert found == [True, None]


@on_ranks(2, [([3.0] * 3, [0.0] * 3)] * 2)
def test_second_wait_for_a_float16_sum_changes_nothing(world):
    tensor = torch.full((3,), 1.0 + world.rank)
    work = group_of(world).all_reduce(tensor, Coding(Transport(codec=Codec.FLOAT16), (0, 0)))
    assert work.ended_within(60)
    work.wait()
    summed = tensor.tolist()
    tensor.zero_()
    work.wait()  # the sum has arrived before, and the changed tensor stays
    return summed, tensor.tolist()


def test_check_ends_a_wait_early_and_is_not_called_after_the_end():
    completion, checks = Completion(), []
    work = completion.work()

    def check():
        checks.append(work.is_completed())
        if len(checks) == 3:
            raise PeerGoneError("worker 1 left")
        return 0.001

    with pytest.raises(PeerGoneError, match="worker 1 left"):
        work.wait(check)
    completion.reached("the connection broke")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the connection broke"):
            work.wait(check)
    assert checks == [False] * 3


@pytest.mark.parametrize("error", [RuntimeError("no address"), OSError("no address")])
def test_bounded_call_gives_up_and_raises_its_error_after_its_return(error):
    may_end, requested = threading.Event(), []

    def fail_late():
        may_end.wait(60)
        raise error

    call = BoundedCall(fail_late)
    with pytest.raises(OverdueError, match=r"did not return within 0\.01 s"):
        call.result(0.01)
    with pytest.raises(OverdueError, match="it is void"):
        call.result(60, lambda: requested.append(1) or "it is void")
    assert call.is_running
    may_end.set()
    with pytest.raises(RuntimeError, match="no address"):
        call.result(60)
    assert (requested, call.is_running) == ([1], False)


class TimedSigns:
    """Notes of the peers, with the times and members of the queries."""

    def __init__(self, clock):
        self.clock, self.count, self.polls, self.checks, self.watched = clock, 0, [], [], []

    def num_changes(self):
        self.polls.append(self.clock[0])
        return self.count

    def watch(self, members):
        self.watched.append(members)

    def failure_reason(self, members, round_):
        self.checks.append((round(self.clock[0], 2), members, round_))
        return "worker 1 left" if self.count == 2 else None


@pytest.mark.parametrize("size", [2, waiting.MAX_WATCHED, waiting.MAX_WATCHED + 1])
def test_peer_watch_polls_often_and_diagnoses_at_intervals_and_on_changes(monkeypatch, size):
    clock, members, reasons = [0.0], tuple(range(size)), []
    monkeypatch.setattr(waiting.time, "monotonic", lambda: clock[0])
    signs = TimedSigns(clock)
    watch = waiting.PeerWatch(signs, members, 7)
    for tick in range(1, 401):  # of 0.01 s
        clock[0] = tick / 100
        signs.count = (tick >= 150) + (tick >= 360)
        assert watch.next >= clock[0] - 0.01
        reasons.append(watch.failure_reason())
    apart = [later - earlier for earlier, later in itertools.pairwise([0.0, *signs.polls])]
    assert all(0.19 < one < 0.22 for one in apart)
    times = [when for when, *_ in signs.checks]
    expected = [1.0, 1.5, times[1] + 1.0, 3.6]  # after a second, at a change, after another second, at a change
    assert all(0 <= when - due < 0.22 for when, due in zip(times, expected, strict=True)), times
    assert {check[1:] for check in signs.checks} == {(members, 7)}
    assert signs.watched == ([members] * 4 if size <= waiting.MAX_WATCHED else [])
    assert [one for one in reasons if one] == ["worker 1 left"]


@pytest.mark.parametrize("waited", [0.0, 1e-4, 1e-3, 0.01, 0.1, 60.0])
def test_polling_pause_is_a_bounded_fraction_of_the_wait(waited):
    pause = waiting.pause_after(waited)
    assert waiting.SHORTEST <= pause <= max(waiting.SHORTEST, waited / waiting.SHARE)
    assert pause <= waiting.LONGEST
    assert pause == waiting.LONGEST or pause >= waited / waiting.SHARE


# Deadlines in a process's own time, which leaves out the time while it was suspended.


@pytest.fixture
def clock(monkeypatch):
    """A settable clock in place of the system's."""
    now = [100.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def advance(clock, seconds, check, tick=0.1):
    for _ in range(round(seconds / tick)):
        clock[0] += tick
        check()


def test_own_time_counts_at_most_a_second_between_two_reads(clock):
    own = OwnTime()
    advance(clock, 3.0, own)
    assert own() == pytest.approx(3.0)
    clock[0] += 3600
    assert own() == pytest.approx(3.0 + MOST_SECONDS)
    assert own() == pytest.approx(3.0 + MOST_SECONDS)
    clock[0] += 0.5
    assert own() == pytest.approx(3.5 + MOST_SECONDS)


def test_own_time_read_by_several_threads_does_not_run_ahead():
    own = OwnTime()
    start = waiting.time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [own() for _ in range(20_000)], range(4)))
    assert own() <= waiting.time.monotonic() - start + 1e-3


def test_deadline_counts_own_time_and_can_be_renewed(clock):
    limit = Deadline(2.0, OwnTime())
    advance(clock, 1.8, lambda: limit.left)
    assert not limit.is_over
    assert limit.left == pytest.approx(0.2)
    limit.renew()
    advance(clock, 1.9, lambda: limit.left)
    assert not limit.is_over
    advance(clock, 0.2, lambda: limit.left)
    assert limit.is_over


def test_wait_names_its_peers_and_lasts_longer_without_a_diagnosis(clock):
    signs = Signs()
    for is_known, extra in ((True, 0.0), (False, DIAGNOSE_SECONDS)):
        signs.is_diagnosed = lambda _members, known=is_known: known
        wait = Wait(signs, (1, 2), 5.0)
        advance(clock, 4.9 + extra, wait.check)
        with pytest.raises(PeerTimeoutError, match="waits for worker 1 for more than 5 s"):
            advance(clock, 0.3, wait.check)


def test_wait_ends_early_when_an_awaited_peer_is_gone(clock):
    signs = Signs()
    wait = Wait(signs, (1, 2), 60.0)
    advance(clock, 3.0, wait.check)
    signs.why = "worker 2 left"
    with pytest.raises(PeerGoneError, match="worker 2 left"):
        advance(clock, 1.5, wait.check)
    requested = []
    signs.failure_reason = lambda members, _round=None: requested.append(members)
    wait = Wait(signs, (1, 2), 60.0)
    wait.set_members((2,))
    advance(clock, 1.5, wait.check)
    assert set(requested) == {(2,)}


def test_connecting_group_asks_for_votes_only_when_a_check_is_due(clock):
    """A vote raises the counter of changes, so asking the store each time would find it no earlier."""
    world, signs, requested = GlooWorld(HashStore(), 0, 2, timedelta(seconds=60)), Signs(), []
    world.signs, world.abort_reason = signs, lambda: requested.append(clock[0])
    watch = world._watch_over((0, 1))
    advance(clock, 0.9, watch)
    assert requested == []
    signs.calls += 1  # a vote is called
    advance(clock, 0.3, watch)
    assert len(requested) == 1


def test_death_of_a_member_is_found_without_signs_of_life(clock):
    """As in `partreduce measure`, whose workers write no heartbeat."""
    world = GlooWorld(HashStore(), 0, 2, timedelta(seconds=60))
    watch, found = world._watch_over((0, 1)), []
    advance(clock, 0.9, watch)
    Notes(world.store, DEATHS).write("1", "was killed by signal 9")
    advance(clock, 0.3, lambda: found.append(watch()))
    assert "worker 1 was killed by signal 9" in found


def test_renewed_wait_restarts_its_limit(clock):
    wait = Wait(SignsOfLife(), (1,), 2.0)
    advance(clock, 1.9, wait.check)
    wait.renew()
    advance(clock, 1.9, wait.check)
    with pytest.raises(PeerTimeoutError, match="waits for worker 1, for more than 2 s"):
        advance(clock, 0.3, wait.check)


def test_own_reason_replaces_the_reason_of_the_peers(clock):
    signs, reasons = Signs(), [None]
    signs.why = "worker 1 left"
    wait = Wait(signs, (1,), 60.0, why=lambda: reasons[0])
    advance(clock, 3.0, wait.check)
    reasons[0] = "it is void"
    with pytest.raises(PeerGoneError, match="it is void"):
        advance(clock, 1.5, wait.check)


# Notes in the store: several are read at once, and the pauses between polls grow with the wait.


@pytest.mark.parametrize(
    "make_store",
    [
        lambda _: HashStore(),
        lambda folder: FileStore(str(folder / "store"), 1),
        lambda _: TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False),
    ],
    ids=["HashStore", "FileStore", "TCPStore"],
)
def test_notes_are_read_together_once_all_exist(make_store, tmp_path):
    place = Notes(make_store(tmp_path), "place")
    place.write("b", "second")
    assert place.read_all(["a", "b"]) is None, "without a wait for the first"
    place.write("a", "first")
    assert place.read_all(["a", "b"]) == ["first", "second"], "in the order of the keys"


def test_late_note_is_read():
    place = Notes(HashStore(), "place")
    writer = threading.Timer(0.05, lambda: place.write("a", "first"))
    writer.start()
    assert place.wait_for("a") == "first"
    writer.join()


WAITS_FOR_WORKER_1 = {
    "nodes of a profile": lambda store: cluster_of(GlooWorld(store, 0, 2, timedelta(seconds=60))),
    "GPUs": lambda store: check_shared_gpus(store, 0, 2, torch.device("cpu"), 1),
}


@pytest.mark.parametrize("what", WAITS_FOR_WORKER_1)
def test_note_of_a_dead_worker_is_not_awaited(monkeypatch, what):
    monkeypatch.setattr(nccl, "place_of", str)
    found = HashStore()
    found.set_timeout(timedelta(seconds=5))
    Notes(found, DEATHS).write("1", "was killed by signal 9")
    with pytest.raises(UnavailableError, match="worker 1 was killed by signal 9"):
        WAITS_FOR_WORKER_1[what](found)


def test_query_that_raises_any_error_ends_at_once():
    line = StoreLine("a store", HashStore, 5.0)
    with pytest.raises(StoreLostError, match=r"the store at a store is gone \('utf-8' codec can't decode"):
        line.ask(lambda _: b"\xff".decode())


def test_pauses_grow_with_the_wait_within_bounds(monkeypatch):
    now, slept = [0.0], []
    monkeypatch.setattr(store, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append))
    pauses = Pauses()
    for waited in (0.0, 0.08, 60.0):
        now[0] = waited
        pauses.sleep()
    assert slept == [POLL_SECONDS, 0.01, LONGEST_POLL_SECONDS]
