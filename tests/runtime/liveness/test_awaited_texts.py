"""Texts of other workers: who waits for them is named where they do not come."""

from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from partreduce.runtime.liveness.awaited_texts import await_texts
from partreduce.runtime.transport.notes import Notes
from partreduce.topo.errors import UnavailableError


def test_texts_come_in_order_and_who_waits_in_vain_says_so_and_for_whom():
    world = SimpleNamespace(store=HashStore())
    notes = Notes(world.store, "place")
    notes.write("b", "second")
    notes.write("a", "first")
    assert await_texts(world, "place", {"a": 1, "b": 2}, 60, who="pilot") == ["first", "second"]
    with pytest.raises(UnavailableError, match=r"^pilot: worker 3 said nothing within 0\.1 s"):
        await_texts(world, "place", {"a": 1, "c": 3}, 0.1, who="pilot")
