"""The queue of operations in flight by itself: what ends a wait, and what stays in the queue then."""

from types import SimpleNamespace

import pytest

from partreduce.runtime.averaging.in_flight import FixedMembership, Flight
from partreduce.topo.errors import InputError, PeerFailedError
from partreduce.topo.phase import Group

BOTH = Group((0, 1))


def flying(*outcomes, turn=1):
    """An operation whose waits end so, one after the other, and then well; with the names of what was done to it."""
    done, left = [], list(outcomes)

    def wait(_):
        if left and (outcome := left.pop(0)) is not None:
            raise outcome
        done.append("waited")

    def start(_flight, group):
        done.append(f"began {group}")
        return [(SimpleNamespace(wait=wait), SimpleNamespace(release=lambda: done.append("released")))]

    return Flight(turn=turn, step=0, round=0, start=start, group=BOTH), done


def test_a_synchronous_operation_begins_where_it_is_waited_for_and_was_never_in_the_queue():
    membership, (flight, done) = FixedMembership((0, 1)), flying()
    assert membership.wait(flight) is flight
    assert done == ["began {0,1}", "waited"]
    assert not membership.flights


def test_an_operation_of_a_worker_that_rests_has_no_sums():
    membership, (flight, done) = FixedMembership((0, 1)), flying()
    flight.group = None
    membership.begin(flight)
    assert not membership.wait(flight).sums
    assert not done
    assert not membership.flights


@pytest.mark.parametrize("error", [KeyboardInterrupt(), PeerFailedError("gone")])
def test_an_interrupted_wait_for_a_checkpoint_keeps_the_operation(error):
    membership, (flight, done) = FixedMembership((0, 1)), flying(error)
    membership.begin(flight)
    with pytest.raises(type(error)):
        membership.settle()
    membership.settle()
    membership.settle()
    assert list(membership.flights) == [flight]
    assert done == ["began {0,1}", "waited"], "once"


def test_what_all_members_refuse_is_no_more_in_flight():
    membership, (flight, _) = FixedMembership((0, 1)), flying(InputError("settings differ"))
    membership.begin(flight)
    with pytest.raises(InputError):
        membership.arrive(flight)
    assert not membership.flights


def test_what_cannot_begin_is_not_in_flight():
    membership = FixedMembership((0, 1))
    flight = Flight(turn=1, step=0, round=0, start=lambda *_: 1 / 0, group=BOTH)
    with pytest.raises(ZeroDivisionError):
        membership.begin(flight)
    assert not membership.flights


def test_dropping_waits_for_all_and_gives_their_arrays_back():
    membership, both = FixedMembership((0, 1)), [flying(turn=turn) for turn in (1, 2)]
    for flight, _ in both:
        membership.begin(flight)
    membership.drop()
    assert [done for _, done in both] == [["began {0,1}", "waited", "released"]] * 2
    assert not membership.flights
