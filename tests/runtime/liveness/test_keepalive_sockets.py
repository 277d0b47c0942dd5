"""Keepalive sockets report a dead process, and neither a stopped process nor an announced exit."""

import json
import os
import signal
import socket
import time

import pytest
from torch.distributed import HashStore, TCPStore

from helpers.waiting import until
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.liveness.keepalive_sockets import KeepaliveSockets, closed_notes, lifelines_of
from partreduce.runtime.transport.store import Notes

LOCAL = ("127.0.0.1", False)


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def fork_worker(port, rank, size):
    """Fork a worker that opens its keepalive sockets and then sleeps; it reads the store's port from a pipe."""
    pid = os.fork()
    if pid == 0:
        mine = TCPStore("127.0.0.1", int(os.read(port, 8)), None, False, wait_for_workers=False)
        KeepaliveSockets(mine, rank, size, "1", LOCAL).start()
        Notes(mine, "ready").write(str(rank), "1")
        time.sleep(60)
        os._exit(0)
    return pid


def end(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait_for_note(store, rank, seconds=60.0):
    end = time.monotonic() + seconds
    while (text := closed_notes(store, "1").read(str(rank))) is None and time.monotonic() < end:
        time.sleep(0.01)
    return text


def start_workers(size):
    """Start the store and worker 0 in this process, and the other workers as forked processes.

    The fork precedes the thread of the store's server, because a child would copy the locks without the thread.
    """
    reading, writing = os.pipe()
    pids = [fork_worker(reading, rank, size) for rank in range(1, size)]
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    os.write(writing, f"{store.port:8}".encode() * (size - 1))
    os.close(reading)
    os.close(writing)
    mine = KeepaliveSockets(store, 0, size, "1", LOCAL)
    until(lambda: Notes(store, "ready").has(*map(str, range(1, size))))
    mine.start()
    return store, mine, pids


def test_killed_worker_is_detected_without_heartbeats():
    store, lines, pids = start_workers(2)
    heartbeat = Heartbeat(store, 0, "1", beats=False)
    before = heartbeat.num_changes()
    end([pids[0]])
    text = wait_for_note(store, 1)
    assert text is not None
    assert heartbeat.cause([0, 1]) == f"worker 1 {text}"
    assert heartbeat.lost([0, 1]) == {1}
    until(lambda: heartbeat.num_changes() != before)  # the change is counted after the note is written
    lines.close()


def test_stopped_worker_is_not_reported_as_closed():
    store, lines, pids = start_workers(2)
    os.kill(pids[0], signal.SIGSTOP)
    assert wait_for_note(store, 1, 1.0) is None
    end(pids)
    assert wait_for_note(store, 1) is not None, "the same worker, once dead: its socket was watched"
    lines.close()


@pytest.mark.parametrize("kind", ["finished", "left", "failed"])
def test_announced_exit_is_not_reported_as_closed(kind):
    store, lines, pids = start_workers(3)
    Heartbeat(store, 1, "1", beats=False).note(kind, "3")
    end(pids)  # worker 2 announces nothing; its report follows the end of worker 1
    assert wait_for_note(store, 2) is not None
    assert wait_for_note(store, 1, 0.5) is None
    lines.close()


def test_successive_deaths_are_all_reported():
    """Each worker watches the next two, and further ones in place of dead workers."""
    store, lines, pids = start_workers(6)
    for rank in (1, 2, 3, 4, 5):
        # A worker that died earlier would not be watched yet.
        until(lambda rank=rank: rank in lines._connections)
        end([pids[rank - 1]])
        assert wait_for_note(store, rank) is not None
    lines.close()


def test_forked_child_does_not_keep_the_socket_open():
    """A data loader's process may outlive the worker."""
    store, lines, pids = start_workers(2)
    end(pids)
    wait_for_note(store, 1)
    fresh = KeepaliveSockets(store, 0, 2, "2", LOCAL)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"x")  # the child runs, so it has closed the inherited socket
        time.sleep(60)
        os._exit(0)
    _, _, port = json.loads(Notes(store, "lifeline/2").read("address/0") or "")
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    os.close(writing)
    fresh.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1.0)
    end([pid])
    lines.close()


def test_loopback_address_of_another_machine_is_not_watched(store):
    """Two machines may both use 127.0.0.1, where another process listens locally."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        Notes(store, "lifeline/1").write("address/1", json.dumps(["127.0.0.1", "elsewhere", port]))
        lines = KeepaliveSockets(store, 0, 2, "1", LOCAL)
        lines.start()
        time.sleep(0.3)
    assert wait_for_note(store, 1, 0.8) is None
    lines.close()


def test_refused_first_connection_is_not_reported(store):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    Notes(store, "lifeline/1").write("address/1", json.dumps(["127.0.0.1", socket.gethostname(), port]))
    lines = KeepaliveSockets(store, 0, 2, "1", LOCAL)
    lines.start()
    assert wait_for_note(store, 1, 0.8) is None
    lines.close()


def test_self_connection_does_not_hide_a_death(monkeypatch):
    """With probability 1/28,232 the kernel picks the dead worker's port as the source port of the new connection."""
    store, lines, pids = start_workers(2)

    def to_itself(place, _timeout):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind(place)
        connection.connect(place)
        return connection

    monkeypatch.setattr(socket, "create_connection", to_itself)
    end(pids)
    assert wait_for_note(store, 1) is not None
    lines.close()


def test_in_memory_store_has_no_keepalive_sockets():
    assert lifelines_of(HashStore(), 0, 2, "1") is None
