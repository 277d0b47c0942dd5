"""One worker's part in votes, by itself: what it takes for a call to vote."""

import json
from dataclasses import asdict
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from partreduce.runtime.elastic.voting import Voting
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.transport.gloo import GlooWorld
from partreduce.runtime.transport.store import CHANGES, DEATHS, OPEN, Notes
from partreduce.schedulers.protocols.base import Received
from partreduce.schedulers.protocols.membership.words import Connected, View


@pytest.fixture
def voting():
    store = HashStore()
    world = GlooWorld(store, 0, 3, timedelta(seconds=60))
    return Voting(
        world, Heartbeat(store, 0, "1", beats=False), lambda _: None, lambda: None, timeout=60.0, max_failures=1
    )


def come_to_the_next_generation(voting):
    voting.take_part()
    voting.feed(Received(3, View(voting.state.view.generation + 1, (0, 1))))
    voting.feed(Connected())


def test_a_look_shows_a_vote_that_is_under_way_and_none_after_it(voting):
    voting.look()
    assert not voting.is_called
    voting.notes.write(f"{OPEN}/1", "1")
    voting.look()
    assert voting.is_called
    come_to_the_next_generation(voting)
    assert not voting.is_called


def test_a_vote_that_ends_while_a_look_at_it_is_on_its_way_is_no_call_to_the_next(voting, monkeypatch):
    """The thread that beats looks, and this worker may hear the view before the answer is there."""
    has = voting.notes.has

    def slowly(*keys):
        found = has(*keys)
        come_to_the_next_generation(voting)
        return found

    voting.notes.write(f"{OPEN}/1", "1")
    monkeypatch.setattr(voting.notes, "has", slowly)
    voting.look()
    assert voting.state.view.generation == 1
    assert not voting.is_called


def test_who_hears_a_view_looks_no_more_for_what_the_launcher_knew(voting):
    deaths = Notes(voting.world.store, DEATHS)
    deaths.count(CHANGES, 2)
    voting.take_part()
    view = {**asdict(View(1, (0, 1), joined=())), CHANGES: 2}
    voting.notes.write("view/1", json.dumps(view))
    assert voting.heartbeat.news() == 2
    assert voting.await_view()
    assert voting.heartbeat.news() == 0
    deaths.count(CHANGES, 1)
    assert voting.heartbeat.news() == 1
