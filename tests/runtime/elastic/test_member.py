"""One worker's part in votes, by itself: what it takes for a call to vote."""

import json
from dataclasses import asdict
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from partreduce.runtime.elastic.coordinator import OPEN
from partreduce.runtime.elastic.member import Member
from partreduce.runtime.environment import MAX_FAILED
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import CHANGES, DEATHS, Notes
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.membership.messages import Connected, View
from partreduce.topo.cluster import Cluster
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce


@pytest.fixture
def member(monkeypatch):
    monkeypatch.setenv(MAX_FAILED, "1")
    store, schedule = HashStore(), Schedule("a schedule", Cluster.regular(1, 3), AllReduce())
    world = GlooWorld(store, 0, 3, timedelta(seconds=60))
    return Member(world, Heartbeat(store, 0, "1", beats=False), schedule, key="1", timeout=60.0)


def come_to_the_next_generation(member):
    member.vote()
    member.handle(Received(3, View(member.state.view.generation + 1, (0, 1))))
    member.handle(Connected())


def test_a_look_shows_a_vote_that_is_under_way_and_none_after_it(member):
    member.poll()
    assert not member.is_called
    member.notes.write(f"{OPEN}/1", "1")
    member.poll()
    assert member.is_called
    come_to_the_next_generation(member)
    assert not member.is_called


def test_a_vote_that_ends_while_a_look_at_it_is_on_its_way_is_no_call_to_the_next(member, monkeypatch):
    """The thread that beats looks, and this worker may hear the view before the answer is there."""
    has = member.notes.has

    def slowly(*keys):
        found = has(*keys)
        come_to_the_next_generation(member)
        return found

    member.notes.write(f"{OPEN}/1", "1")
    monkeypatch.setattr(member.notes, "has", slowly)
    member.poll()
    assert member.state.view.generation == 1
    assert not member.is_called


def test_who_hears_a_view_looks_no_more_for_what_the_launcher_knew(member):
    deaths = Notes(member.world.store, DEATHS)
    deaths.count(CHANGES, 2)
    member.vote()
    view = {**asdict(View(1, (0, 1), joined=())), CHANGES: 2}
    member.notes.write("view/1", json.dumps(view))
    assert member.heartbeat.news() == 2
    assert member.await_view()
    assert member.heartbeat.news() == 0
    deaths.count(CHANGES, 1)
    assert member.heartbeat.news() == 1
