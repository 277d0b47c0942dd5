"""Deadlines by the clock of a process's own time: what it counts, and what ends a wait by it."""

import threading
from types import SimpleNamespace

import pytest

from helpers.signs import Signs
from partreduce.runtime.transport import waiting
from partreduce.runtime.transport.waiting import (
    DIAGNOSE_SECONDS,
    MOST_SECONDS,
    Deadline,
    OwnTime,
    PeerGoneError,
    PeerTimeoutError,
    SignsOfLife,
    Wait,
)


@pytest.fixture
def clock(monkeypatch):
    """The system's clock, to be set; everything that asks it asks this one."""
    now = [100.0]
    told = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(waiting, "time", told)
    return now


def passes(clock, seconds, look, tick=0.1):
    for _ in range(round(seconds / tick)):
        clock[0] += tick
        look()


def test_seconds_count_while_somebody_looks_and_at_most_one_where_nobody_did(clock):
    own = OwnTime()
    passes(clock, 3.0, own)
    assert own() == pytest.approx(3.0)
    clock[0] += 3600
    assert own() == pytest.approx(3.0 + MOST_SECONDS)
    assert own() == pytest.approx(3.0 + MOST_SECONDS)
    clock[0] += 0.5
    assert own() == pytest.approx(3.5 + MOST_SECONDS)


def test_any_thread_may_look_and_none_makes_the_clock_run_ahead():
    own = OwnTime()
    start = waiting.time.monotonic()
    threads = [threading.Thread(target=lambda: [own() for _ in range(20_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert own() <= waiting.time.monotonic() - start + 1e-3


def test_a_deadline_passes_after_its_seconds_of_own_time_and_may_begin_anew(clock):
    limit = Deadline(2.0, OwnTime())
    passes(clock, 1.8, lambda: limit.left)
    assert not limit.is_over
    assert limit.left == pytest.approx(0.2)
    limit.renew()
    passes(clock, 1.9, lambda: limit.left)
    assert not limit.is_over
    passes(clock, 0.2, lambda: limit.left)
    assert limit.is_over


def test_a_wait_names_whom_it_waits_for_and_takes_a_little_longer_where_nobody_is_silent(clock):
    signs = Signs()
    for is_known, extra in ((True, 0.0), (False, DIAGNOSE_SECONDS)):
        signs.sees_silence = lambda _members, known=is_known: known
        wait = Wait(signs, (1, 2), 5.0)
        passes(clock, 4.9 + extra, wait.look)
        with pytest.raises(PeerTimeoutError, match="waits for worker 1 for more than 5 s"):
            passes(clock, 0.3, wait.look)


def test_a_wait_ends_early_where_one_of_those_that_are_still_missing_is_gone(clock):
    signs = Signs()
    wait = Wait(signs, (1, 2), 60.0)
    passes(clock, 3.0, wait.look)
    signs.why = "worker 2 left"
    with pytest.raises(PeerGoneError, match="worker 2 left"):
        passes(clock, 1.5, wait.look)
    asked = []
    signs.gone = lambda members, _round=None: asked.append(members)
    wait = Wait(signs, (1, 2), 60.0)
    wait.only_for((2,))
    passes(clock, 1.5, wait.look)
    assert set(asked) == {(2,)}


def test_a_wait_that_somebody_else_limits_for_a_while_begins_anew(clock):
    wait = Wait(SignsOfLife(), (1,), 2.0)
    passes(clock, 1.9, wait.look)
    wait.renew()
    passes(clock, 1.9, wait.look)
    with pytest.raises(PeerTimeoutError, match="waits for worker 1, for more than 2 s"):
        passes(clock, 0.3, wait.look)


def test_a_reason_of_ones_own_replaces_that_of_the_others(clock):
    signs, reasons = Signs(), [None]
    signs.why = "worker 1 left"
    wait = Wait(signs, (1,), 60.0, why=lambda: reasons[0])
    passes(clock, 3.0, wait.look)
    reasons[0] = "it is void"
    with pytest.raises(PeerGoneError, match="it is void"):
        passes(clock, 1.5, wait.look)
