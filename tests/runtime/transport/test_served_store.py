"""Workers notice at once that the worker that serves their store died, even if its forked children live."""

import os
import signal
import socket
import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from helpers.two_nodes import free_port
from partreduce.errors import StoreLostError
from partreduce.runtime.transport import rendezvous
from partreduce.runtime.transport.rendezvous import connect_store
from partreduce.runtime.transport.store import Notes

pytestmark = pytest.mark.processes
TIMEOUT = timedelta(seconds=60)


def sleep_forever():
    while True:
        time.sleep(0.05)


def fork(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(1)
    return pid


def poll_forever(notes):
    while True:
        notes.has("anything")


@pytest.mark.parametrize("num_children", [0, 2])
def test_killed_store_host_is_noticed_at_once_despite_its_children(monkeypatch, num_children):
    """Processes of data loaders once kept the store's sockets open, so that workers got neither answer nor error."""
    port = free_port()
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    reading, writing = os.pipe()

    def serve():
        store = connect_store(TIMEOUT)
        notes = Notes(store, "test")
        while not notes.has("the other is here"):
            time.sleep(0.01)
        for _ in range(num_children):
            pid = fork(sleep_forever)
            os.write(writing, pid.to_bytes(4, "big"))
        notes.write("children", "1")
        sleep_forever()

    host, children = fork(serve), []
    try:
        client = TCPStore("127.0.0.1", port, None, False, TIMEOUT, wait_for_workers=False)
        notes = Notes(client, "partreduce/attempt-0/test")
        notes.write("the other is here", "1")
        assert notes.wait_for("children") == "1"
        children = [int.from_bytes(os.read(reading, 4), "big") for _ in range(num_children)]
        os.kill(host, signal.SIGKILL)
        os.waitpid(host, 0)
        host = None
        with pytest.raises(StoreLostError) as caught:
            poll_forever(notes)
        assert "gave no answer" not in str(caught.value)
        for child in children:
            os.kill(child, 0)  # raises if the child is gone
    finally:
        for pid in [*children, *([host] if host is not None else [])]:
            os.kill(pid, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_forked_child_closes_only_the_sockets_of_the_store(monkeypatch):
    """It keeps the program's own sockets, even one at the port of an earlier store."""
    monkeypatch.setattr(rendezvous, "_listeners", set())
    with socket.create_server(("127.0.0.1", 0)) as former:
        port = former.getsockname()[1]
        rendezvous.close_in_forks(port)
    with socket.create_server(("127.0.0.1", port)) as mine, socket.create_server(("127.0.0.1", 0)) as store:
        rendezvous.close_in_forks(store.getsockname()[1])
        with socket.create_connection(store.getsockname()) as client, store.accept()[0] as accepted:
            child = os.fork()
            if child == 0:
                kept = [is_socket(one.fileno()) for one in (mine, client, store, accepted)]
                os._exit(int(kept != [True, True, False, False]))
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert all(is_socket(one.fileno()) for one in (mine, client, store, accepted)), "in the worker itself"


def is_socket(descriptor):
    try:
        socket.socket(fileno=descriptor).detach()
    except OSError:
        return False
    return True
