"""The handshake: what it costs the store, and who is named where somebody differs or does not come."""

import json

import pytest
from torch.distributed import HashStore

from partreduce.runtime.liveness.handshake import handshake
from partreduce.runtime.transport.store import DEATHS, Notes
from partreduce.topo.errors import HandshakeError, UnavailableError


def store_with(size, *, without=(), **facts_of):
    """The store of so many workers, of which all have said the same but those that are named, and some nothing."""
    store = HashStore()
    notes = Notes(store, "handshake/1")
    for rank in range(size):
        if rank not in without:
            said = {"number of workers": str(size), "model": "a", **facts_of.get(f"worker_{rank}", {})}
            notes.write(f"facts/{rank}", json.dumps(said))
    return store


@pytest.mark.parametrize("size", [2, 64])
def test_where_all_have_come_it_asks_once_however_many_they_are(size, monkeypatch):
    asked, ask = [], Notes._ask
    monkeypatch.setattr(Notes, "_ask", lambda notes, action: asked.append(1) or ask(notes, action))
    store = store_with(size)
    asked.clear()
    handshake(store, 0, size, {"model": "a"}, timeout=60)
    assert len(asked) == 2, "it says its own facts, and reads those of all"


def test_who_differs_is_named_though_another_never_comes():
    store = store_with(5, without=(4,), worker_1={"model": "b"})
    with pytest.raises(HandshakeError, match="model differs: rank 1 has b; the others have a"):
        handshake(store, 2, 5, {"model": "a"}, timeout=60)


def test_who_does_not_come_is_named_and_nobody_who_has():
    with pytest.raises(UnavailableError, match=r"^handshake: ranks 1, 3 of 4 did not arrive within 0\.05 s"):
        handshake(store_with(4, without=(1, 3)), 0, 4, {"model": "a"}, timeout=0.05)


def test_who_died_before_is_named_long_before_the_timeout():
    store = store_with(3, without=(1,))
    Notes(store, DEATHS).write("1", "was killed by signal 9 (SIGKILL)")
    with pytest.raises(UnavailableError, match=r"^handshake: worker 1 was killed by signal 9 \(SIGKILL\) before it"):
        handshake(store, 0, 3, {"model": "a"}, timeout=3600)
