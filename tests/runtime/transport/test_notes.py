"""Notes: all of several are read at once, and pauses between questions grow with the wait."""

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from torch.distributed import FileStore, HashStore, TCPStore

from partreduce.runtime.transport import store
from partreduce.runtime.transport.store import LONGEST_POLL_SECONDS, POLL_SECONDS, Notes, Pauses


def stores(folder):
    return {
        "in memory": lambda: HashStore(),
        "in a file": lambda: FileStore(str(folder / "store"), 1),
        "served": lambda: TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), wait_for_workers=False),
    }


@pytest.mark.parametrize("kind", ["in memory", "in a file", "served"])
def test_notes_are_read_together_once_all_of_them_are_there(kind, tmp_path):
    place = Notes(stores(tmp_path)[kind](), "place")
    place.write("b", "second")
    assert place.read_all(["a", "b"]) is None, "and nobody waits for the first"
    place.write("a", "first")
    assert place.read_all(["a", "b"]) == ["first", "second"], "in the order of the question"


def test_a_note_that_comes_late_is_read():
    place = Notes(HashStore(), "place")
    writer = threading.Timer(0.05, lambda: place.write("a", "first"))
    writer.start()
    assert place.wait_for("a") == "first"
    writer.join()


def test_pauses_are_a_part_of_the_wait_and_have_ends(monkeypatch):
    now, slept = [0.0], []
    monkeypatch.setattr(store, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=slept.append))
    pauses = Pauses()
    for waited in (0.0, 0.08, 60.0):
        now[0] = waited
        pauses.sleep()
    assert slept == [POLL_SECONDS, 0.01, LONGEST_POLL_SECONDS]
