"""The coordinator alone: the notes of workers that the launcher reads, and its membership views."""

import io
import json
import time
from dataclasses import asdict
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from partreduce import Cluster, Schedule
from partreduce.errors import PeerFailedError, UnavailableError
from partreduce.runtime.averaging.in_flight import Flight
from partreduce.runtime.elastic.coordinator import JOIN, JOINED, LEFT, MEMBERSHIP, NEWS, OPEN, RELEASED, Coordinator
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.environment import MAX_FAILED
from partreduce.runtime.launcher.log_multiplexer import LogMultiplexer
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport import waiting
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import CHANGES, DEATHS, Notes
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.membership.messages import Connected, View
from partreduce.strategies import AllReduce

WORKERS = 4


class Run:
    """Workers that have joined, as seen by their launcher."""

    def __init__(self):
        self.store = HashStore()
        self.notes, self.deaths = Notes(self.store, MEMBERSHIP), Notes(self.store, DEATHS)
        for rank in range(WORKERS):
            self.notes.write(f"{JOINED}/{rank}", json.dumps({"timeout": 60.0, "are_equal": True, "turns": 1}))
            self.notes.count(JOINED, 1)
        self.workers = [SimpleNamespace(rank=rank, code=None, signal=lambda _: None) for rank in range(WORKERS)]
        self.coordinator = Coordinator(self.workers, self.store, 1, LogMultiplexer(io.StringIO()))

    def fail(self, rank):
        self.deaths.write(str(rank), "was killed by signal 9 (SIGKILL)")
        self.deaths.count(CHANGES, 1)
        self.coordinator.continue_without(self.workers[rank], is_failed=True)

    def vote(self, rank, generation=1):
        self.notes.write(f"vote/{generation}/{rank}", json.dumps([[7, 0], [], True, False]))
        self.notes.count(NEWS, 1)
        self.coordinator.poll()

    def announce(self, kind, rank, text):
        self.notes.write(f"{kind}/{rank}", text)
        self.notes.count(kind, 1)
        self.notes.count(NEWS, 1)
        self.coordinator.poll()

    def view(self, generation):
        text = self.notes.read(f"view/{generation}")
        return None if text is None else json.loads(text)


@pytest.fixture
def run():
    return Run()


def test_votes_are_read_once_and_unannounced_notes_never(run, monkeypatch):
    read, requested = Notes.read, []
    monkeypatch.setattr(Notes, "read", lambda notes, key: requested.append(key) or read(notes, key))
    run.fail(3)
    found = []
    for rank in (0, 1):
        requested.clear()
        run.vote(rank)
        found.append([key for key in requested if key.startswith(("vote", JOIN, LEFT))])
    assert found == [[f"vote/1/{rank}" for rank in (0, 1, 2, 3)], [f"vote/1/{rank}" for rank in (1, 2, 3)]]
    run.vote(2)
    assert run.view(1)["members"] == [0, 1, 2]


def test_joins_and_departures_are_processed_alongside_votes(run):
    run.fail(3)
    for rank in (0, 1, 2):
        run.vote(rank)
    run.announce(JOIN, 3, "1.1")
    for rank in (0, 1, 2):
        run.vote(rank, generation=2)
    assert run.view(2)["joined"] == [3]
    run.announce(LEFT, 1, "1")
    assert run.notes.has(f"{RELEASED}/1")
    assert not run.notes.has(f"{RELEASED}/0")


def test_request_to_join_after_the_end_of_the_run_is_answered(run):
    """The view of the answer is empty, so that the worker that asks ends instead of waiting."""
    run.fail(3)
    for rank in (0, 1, 2):
        run.vote(rank)
    run.coordinator.exited_well(run.workers[0])  # without finish()
    run.announce(JOIN, 3, "1.1")
    assert run.notes.read("answer/3/1.1") == "2"
    assert run.view(2)["members"] == []


def test_view_settles_its_failure_and_no_later_one(run):
    heartbeat = Heartbeat(run.store, 0, "1", beats=False)
    run.fail(3)
    assert heartbeat.num_changes() > 0
    for rank in (0, 1, 2):
        run.vote(rank)
    heartbeat.settled = run.view(1)[CHANGES]
    assert heartbeat.num_changes() == 0
    run.fail(2)
    assert heartbeat.num_changes() > 0


# One worker's part in votes: the notes that call it to a vote.


@pytest.fixture
def member(monkeypatch):
    monkeypatch.setenv(MAX_FAILED, "1")
    store, schedule = HashStore(), Schedule("a schedule", Cluster.regular(1, 3), AllReduce())
    world = GlooWorld(store, 0, 3, timedelta(seconds=60))
    return Member(world, Heartbeat(store, 0, "1", beats=False), schedule, key="1", timeout=60.0)


def enter_next_generation(member):
    member.vote()
    member.handle(Received(3, View(member.state.view.generation + 1, (0, 1))))
    member.handle(Connected())


def test_poll_finds_an_open_vote_until_the_next_generation(member):
    member.poll()
    assert not member.is_called
    member.notes.write(f"{OPEN}/1", "1")
    member.poll()
    assert member.is_called
    enter_next_generation(member)
    assert not member.is_called


def test_poll_that_outlasts_its_vote_is_no_call_to_the_next(member, monkeypatch):
    """The heartbeat thread polls, and this worker may receive the view before the answer."""
    has = member.notes.has

    def has_with_delay(*keys):
        found = has(*keys)
        enter_next_generation(member)
        return found

    member.notes.write(f"{OPEN}/1", "1")
    monkeypatch.setattr(member.notes, "has", has_with_delay)
    member.poll()
    assert member.state.view.generation == 1
    assert not member.is_called


def test_received_view_settles_the_failures_that_the_launcher_knew(member):
    deaths = Notes(member.world.store, DEATHS)
    deaths.count(CHANGES, 2)
    member.vote()
    view = {**asdict(View(1, (0, 1), joined=())), CHANGES: 2}
    member.notes.write("view/1", json.dumps(view))
    assert member.heartbeat.num_changes() == 2
    assert member.await_view()
    assert member.heartbeat.num_changes() == 0
    deaths.count(CHANGES, 1)
    assert member.heartbeat.num_changes() == 1


def end_of_run(member):
    """The error of a worker that is called to a vote after which the run ends."""
    generation = member.state.view.generation + 1
    member.vote()
    member.handle(Received(3, View(generation, ())))
    with pytest.raises(PeerFailedError) as caught:
        member._continue(None)
    return str(caught.value).removeprefix("the run ends: ")


def test_run_that_ends_in_a_gathering_names_the_workers_outside(member):
    """They could not average with this worker, and called the vote."""
    with member.heartbeat.gathering("mean_model()", 4):
        output = end_of_run(member)
    assert output.startswith(
        "this worker 0 is in mean_model() after 4 rounds, workers 1, 2 not: all workers call mean_"
    )


def test_run_that_ends_because_survivors_cannot_connect_names_the_cause(member, monkeypatch):
    def compare(*_):
        raise UnavailableError("group {0,1}: not all members connected within 60 s")

    monkeypatch.setattr(member.regroup, "_compare", compare)
    member.regroup.reducers = {type("Reducer", (), {"heartbeat": member.heartbeat})(): "1"}
    for view in (View(1, (0, 1)), View(2, ())):
        member.notes.write(f"view/{view.generation}", json.dumps({**asdict(view), CHANGES: 0}))
    member.vote()
    with pytest.raises(PeerFailedError) as caught:
        member._continue(None)
    assert str(caught.value) == "the run ends: group {0,1}: not all members connected within 60 s"


def test_run_that_ends_does_not_name_a_failure_that_it_survived(member):
    Notes(member.world.store, DEATHS).write("2", "was killed by signal 9 (SIGKILL)")
    enter_next_generation(member)
    assert end_of_run(member) == "the launcher ended it"


def test_timeout_of_a_gathering_begins_again_after_a_vote(member, monkeypatch):
    """The vote takes longer than the timeout, and worker 1 arrives soon after it."""
    monkeypatch.setattr(waiting, "DIAGNOSE_SECONDS", 0.0)
    monkeypatch.setattr(member.regroup, "connect", lambda *_: None)
    member.timeout = 1.0
    gathered, calls = member.heartbeat.gathered, []

    def await_view():
        for _ in range(3):
            time.sleep(0.5)
            waiting.own_time()
        member.handle(Received(3, View(1, (0, 1))))
        return True

    def gathered_later(members):
        calls.append(members)
        return gathered(members) if len(calls) < 3 else frozenset(members)

    monkeypatch.setattr(member, "await_view", await_view)
    monkeypatch.setattr(member.heartbeat, "gathered", gathered_later)
    member.notes.write(f"{OPEN}/1", "1")
    with member.heartbeat.gathering("mean_model()", 4):
        assert member.gathered("mean_model()") == (0, 1)
    assert calls == [(0, 1, 2), (0, 1), (0, 1)]


def test_joined_worker_gives_to_no_average_from_before_its_join(member):
    """A gradient average divides by the members that took its step."""
    member.vote()
    member.handle(Received(3, View(1, (0, 1, 2), resume=(5, 0), joined=(2,), donor=0)))
    assert [member.givers(step) for step in (4, 5)] == [2, 3]


def test_operation_from_before_the_resumed_step_is_not_started_ahead(member):
    member.vote()
    member.handle(Received(3, View(1, (0, 1), resume=(5, 0))))
    member.handle(Connected())
    started = []
    for turn in (4, 5):
        member.begin(Flight(turn=turn, step=turn, round=turn, start=lambda one, _: started.append(one.turn) or []))
    assert started == [5]
