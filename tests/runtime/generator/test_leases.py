"""Leases of the group generator: they scale with the timeout, and only silent workers lose them."""

import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

zmq = pytest.importorskip("zmq")

from helpers.generator_rig import FOUR_ON_ONE_NODE, clients_of, fall_silent, serving  # noqa: E402 - after a skip
from helpers.waiting import until  # noqa: E402
from partreduce.errors import InputError  # noqa: E402
from partreduce.runtime.transport import waiting  # noqa: E402


@pytest.fixture
def start_service():
    """Start services with a given lease; the fixture ends them."""
    with contextlib.ExitStack() as stack:

        def start(lease, num_workers=4):
            setting = replace(FOUR_ON_ONE_NODE, nodes=(0,) * num_workers, group_size=2)
            return stack.enter_context(serving(setting, lease=lease))[0]

        yield start


def ask_all(service, clients):
    """Begin a round on all clients, and wait until the service has received every request."""
    for client in clients:
        client.begin()
    until(lambda: min(service.state.requests[: len(clients)]) >= 0)


def test_timeout_below_the_lease_raises(start_service):
    with clients_of(start_service(10.0), 1, timeout=5.0) as (client,):
        client.begin()
        with pytest.raises(InputError, match=r"timeout of 5 s is below the lease of 10 s.* raise the timeout or lower"):
            client.group()


def test_lease_scales_with_the_timeout_of_the_workers(start_service):
    """The same silence evicts a worker with a timeout of 8 s and not one with a timeout of 600 s."""
    services = [start_service(None), start_service(None)]
    with clients_of(services[0], timeout=8.0) as brief, clients_of(services[1], timeout=600.0) as patient:
        for service, clients in zip(services, (brief, patient), strict=True):
            ask_all(service, clients)
            fall_silent(clients[3])
        until(lambda: services[0].state.status[3] == "dead")
        assert [status == "dead" for status in services[0].state.status] == [False, False, False, True]
        assert "dead" not in services[1].state.status


def test_heartbeats_are_frequent_enough_for_the_lease(start_service):
    """The lease is shorter than the timeout implies, and an idle worker repeats no request."""
    service = start_service(4.0, num_workers=3)
    with clients_of(service, 3, timeout=60.0) as clients:
        ask_all(service, clients)
        until(lambda: "alone" in [client._state.stage for client in clients])  # of three workers in pairs
        time.sleep(6.0)
        assert "dead" not in service.state.status


def test_pause_of_the_service_does_not_expire_leases(start_service, monkeypatch):
    """No lease can be renewed while the machine sleeps for 100 s; a worker that is silent afterwards is evicted."""
    passed = [0.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0]))
    service = start_service(4.0)
    with clients_of(service, timeout=60.0) as clients:
        ask_all(service, clients)
        passed[0] = 100.0
        time.sleep(0.5)
        assert "dead" not in service.state.status
        fall_silent(clients[3])
        until(lambda: service.state.status[3] == "dead")
        assert [status == "dead" for status in service.state.status] == [False, False, False, True]
