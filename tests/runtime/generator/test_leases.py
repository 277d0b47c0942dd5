"""Lease and timeout of a generated schedule are one policy: a short pause is forgiven, an evicted worker ends alone."""

import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

zmq = pytest.importorskip("zmq")

from helpers.generator_rig import FOUR_ON_ONE_NODE, serving  # noqa: E402 - after the import that may skip
from helpers.waiting import until  # noqa: E402
from partreduce.errors import InputError  # noqa: E402
from partreduce.runtime.generator.client import GeneratorClient  # noqa: E402
from partreduce.runtime.transport import waiting  # noqa: E402


@pytest.fixture
def start_service():
    """Starts services with a given lease; all are ended."""
    with contextlib.ExitStack() as stack:

        def start(lease, num_workers=4):
            setting = replace(FOUR_ON_ONE_NODE, nodes=(0,) * num_workers, group_size=2)
            return stack.enter_context(serving(setting, lease=lease))[0]

        yield start


def clients_of(service, timeout, number=4):
    return [GeneratorClient(service.address, service.key, rank, timeout=timeout) for rank in range(number)]


def ask_all(service, clients):
    """All have begun a round, and the service has heard of it."""
    for client in clients:
        client.begin()
    until(lambda: min(service.state.requests[: len(clients)]) >= 0)


def test_a_timeout_below_the_lease_is_refused_in_one_line(start_service):
    clients = clients_of(start_service(10.0), timeout=5.0)
    clients[0].begin()
    with pytest.raises(InputError, match=r"timeout of 5 s is below the lease of 10 s.* raise the timeout or lower"):
        clients[0].group()
    for client in clients:
        client.close()


def test_the_lease_is_a_part_of_the_timeout_that_the_workers_say(start_service):
    """A silence after which a run that waits for eight seconds gives a worker up is nothing to one of ten minutes."""
    services = [start_service(None), start_service(None)]
    clients = [clients_of(service, timeout) for service, timeout in zip(services, (8.0, 600.0), strict=True)]
    for service, theirs in zip(services, clients, strict=True):
        ask_all(service, theirs)
        theirs[3]._closing = True  # its thread ends without a word, as that of a stopped process does
        theirs[3]._thread.join(60)
    until(lambda: services[0].state.status[3] == "dead")
    assert [status == "dead" for status in services[0].state.status] == [False, False, False, True]
    assert "dead" not in services[1].state.status
    for client in [*clients[0], *clients[1]]:
        client.close()


def test_workers_give_signs_of_life_as_often_as_the_lease_needs(start_service):
    """The workers' timeout says nothing of a shorter lease, and one that waits for nothing repeats no request."""
    service = start_service(4.0, num_workers=3)
    clients = clients_of(service, timeout=60.0, number=3)
    ask_all(service, clients)
    until(lambda: "alone" in [client._state.stage for client in clients])  # of three workers in pairs
    time.sleep(6.0)
    assert "dead" not in service.state.status
    for client in clients:
        client.close()


def test_a_time_in_which_the_service_stood_itself_counts_for_nobody(start_service, monkeypatch):
    """The machine stood for a hundred seconds, so no lease could be renewed; one that is silent afterwards is late."""
    passed = [0.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    service = start_service(4.0)
    clients = clients_of(service, timeout=60.0)
    ask_all(service, clients)
    passed[0] = 100.0
    time.sleep(0.5)
    assert "dead" not in service.state.status
    clients[3]._closing = True
    until(lambda: service.state.status[3] == "dead")
    assert [status == "dead" for status in service.state.status] == [False, False, False, True]
    for client in clients:
        client.close()
