"""One worker's part in votes, by itself: what it takes for a call to vote."""

import json
from dataclasses import asdict
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from partreduce.runtime.elastic.member import Votes
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import CHANGES, DEATHS, OPEN, Notes
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.membership.words import Connected, View


@pytest.fixture
def votes():
    store = HashStore()
    world = GlooWorld(store, 0, 3, timedelta(seconds=60))
    nothing = {"on_vote": lambda: None, "on_view": lambda _: None}
    return Votes(world, Heartbeat(store, 0, "1", beats=False), timeout=60.0, max_failures=1, **nothing)


def come_to_the_next_generation(votes):
    votes.vote()
    votes.step(Received(3, View(votes.state.view.generation + 1, (0, 1))))
    votes.step(Connected())


def test_a_look_shows_a_vote_that_is_under_way_and_none_after_it(votes):
    votes.poll()
    assert not votes.is_called
    votes.notes.write(f"{OPEN}/1", "1")
    votes.poll()
    assert votes.is_called
    come_to_the_next_generation(votes)
    assert not votes.is_called


def test_a_vote_that_ends_while_a_look_at_it_is_on_its_way_is_no_call_to_the_next(votes, monkeypatch):
    """The thread that beats looks, and this worker may hear the view before the answer is there."""
    has = votes.notes.has

    def slowly(*keys):
        found = has(*keys)
        come_to_the_next_generation(votes)
        return found

    votes.notes.write(f"{OPEN}/1", "1")
    monkeypatch.setattr(votes.notes, "has", slowly)
    votes.poll()
    assert votes.state.view.generation == 1
    assert not votes.is_called


def test_who_hears_a_view_looks_no_more_for_what_the_launcher_knew(votes):
    deaths = Notes(votes.world.store, DEATHS)
    deaths.count(CHANGES, 2)
    votes.vote()
    view = {**asdict(View(1, (0, 1), joined=())), CHANGES: 2}
    votes.notes.write("view/1", json.dumps(view))
    assert votes.heartbeat.news() == 2
    assert votes.await_view()
    assert votes.heartbeat.news() == 0
    deaths.count(CHANGES, 1)
    assert votes.heartbeat.news() == 1
