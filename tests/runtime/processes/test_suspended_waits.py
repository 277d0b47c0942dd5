"""A stopped worker blames no other: all processes stop for longer than the timeout while one waits for another."""

import json
import sys

import pytest

from helpers.warm import WARM

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

NAMES = (
    "all-reduce", "neighbors", "gap", "quorum", "pairwise", "asynchronous server", "room in a mailbox", "message",
    "store", "note", "generator",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes():
    """The outcome of each job; they run concurrently, since they are stopped most of the time."""
    pytest.importorskip("zmq")
    timeout = 10  # seconds; all processes stop for a little longer
    return json.loads(WARM.run("helpers.suspended", str(timeout), *NAMES, timeout=580, check=True).stdout)


@pytest.mark.parametrize("name", NAMES)
def test_time_while_a_waiter_was_stopped_is_not_counted(outcomes, name):
    sys.stdout.write(outcomes[name]["output"])
    assert outcomes[name]["suspended"], "the fault fired"
    assert outcomes[name]["codes"] == {"waiter": 0, "other": 0}
