"""Texts of other workers: who waits for them is named where they do not come."""

from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from partreduce.runtime.liveness.store_collectives import broadcast_decision, gather_from_store
from partreduce.runtime.transport.store import Notes
from partreduce.topo.errors import FileError, InputError, PeerFailedError, UnavailableError


def test_texts_come_in_order_and_who_waits_in_vain_says_so_and_for_whom():
    world = SimpleNamespace(store=HashStore())
    notes = Notes(world.store, "place")
    notes.write("b", "second")
    notes.write("a", "first")
    assert gather_from_store(world, "place", {"a": 1, "b": 2}, 60, who="pilot") == ["first", "second"]
    with pytest.raises(UnavailableError, match=r"^pilot: worker 3 said nothing within 0\.1 s"):
        gather_from_store(world, "place", {"a": 1, "c": 3}, 0.1, who="pilot")


def workers():
    store = HashStore()
    return [SimpleNamespace(store=store, rank=rank) for rank in range(2)]


def test_what_worker_0_decides_all_do():
    for world in workers():
        found = broadcast_decision(world, "place", lambda rank=world.rank: {"asked": [rank]}, 60, who="pilot")
        assert found == {"asked": [0]}, "worker 0 alone is asked"


@pytest.mark.parametrize(
    ("met", "raised"),
    [(UnavailableError, UnavailableError), (PeerFailedError, PeerFailedError), (FileError, InputError)],
)
def test_what_stops_worker_0_stops_all_with_the_same_line_and_says_whether_somebody_is_gone(met, raised):
    def decide():
        raise met("worker 3 said nothing")

    for world in workers():
        with pytest.raises(raised, match=r"^worker 3 said nothing$") as caught:
            broadcast_decision(world, "place", decide, 60, who="pilot")
        assert caught.type is raised
