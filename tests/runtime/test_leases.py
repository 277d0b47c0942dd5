"""Lease and timeout of a generated schedule are one policy: who pauses briefly comes back, who is fenced ends alone."""

import threading
import time

import pytest

zmq = pytest.importorskip("zmq")

from preduce.runtime.generator.client import GeneratorClient  # noqa: E402 - after the import that may skip
from preduce.runtime.generator.keys import JobKeys  # noqa: E402
from preduce.runtime.generator.service import GeneratorService  # noqa: E402
from preduce.schedulers.protocols.group_generator.draw import GeneratorSetting  # noqa: E402
from preduce.topo.errors import InputError  # noqa: E402
from preduce.topo.strategies.generated import Division  # noqa: E402


@pytest.fixture
def started():
    """Starts services with a given lease; all are ended."""
    running = []

    def start(lease):
        setting = GeneratorSetting(nodes=(0, 0, 0, 0), division=Division.GLOBAL, slow_threshold=None)
        service = GeneratorService(setting, JobKeys.make(), lease=lease)
        thread = threading.Thread(target=service.run, args=(60,))
        thread.start()
        running.append((service, thread))
        return service

    yield start
    for service, thread in running:
        service.stop()
        thread.join(10)
        service.close()


def clients_of(service, timeout):
    return [GeneratorClient(service.address, service.keys.for_workers(), rank, timeout=timeout) for rank in range(4)]


def test_a_timeout_below_the_lease_is_refused_in_one_line(started):
    clients = clients_of(started(10.0), timeout=5.0)
    clients[0].begin()
    with pytest.raises(InputError, match=r"timeout of 5 s is below the lease of 10 s.* raise the timeout or lower"):
        clients[0].group()
    for client in clients:
        client.close()


@pytest.mark.parametrize(("timeout", "is_given_up"), [(20.0, False), (2.0, True)])
def test_the_lease_is_a_part_of_the_timeout_that_the_workers_say(started, timeout, is_given_up):
    """A silence of three seconds is nothing to a run that waits for twenty, and too long for one that waits for two."""
    service = started(None)
    clients = clients_of(service, timeout)
    for client in clients:
        client.begin()
    deadline = time.monotonic() + 20
    while min(service.state.requests) < 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    clients[3]._closing = True  # its thread ends without a word, as that of a stopped process does
    clients[3]._thread.join(5)
    time.sleep(3.0)
    assert (service.state.status[3] == "dead") is is_given_up
    assert "dead" not in service.state.status[:3]
    for client in clients:
        client.close()
